"""How much of a memory-mapped file stays resident in this process.

A page of a mapped file that was read once counts as resident until the kernel needs the memory. Handing
pages back leaves them in the kernel's page cache, so that reading them again costs a page fault and no disk
access; reading on in other threads meanwhile is safe. Linux only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlap_train import errors
from overlap_train._support.arguments import require_count
from overlap_train._support.closing import Closing
from overlap_train._support.threads import start

_POLL_S = 0.02  # at 10 GB/s of page faults, 200 MB beyond the limit
_STOP_TIMEOUT_S = 5.0


class ResidentLimit(Closing):
    """Keep the resident pages of a mapped array near a limit while a block of code runs.

    A thread, started by `with`, watches the process and drops the array's pages whenever the limit is
    exceeded. Use it around training from an array that is larger than memory, or that should leave room:

        with ResidentLimit(images, limit_bytes=512 << 20):
            trainer.fit(...)

    The limit is soft: about 20 ms of reading may exceed it. Pages of other mapped files count as well and are
    not dropped.

    Args:
        array: an array from `numpy.load(path, mmap_mode="r")` or "r+", or part of one. All whole pages within
            it are dropped.
        limit_bytes: resident bytes to allow, beyond what was resident at the start.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the limit is not positive.
        errors.BufferError: the memory is not a shared mapping of a file. Dropping private pages would lose
            what was written to them.
        errors.NativeUnavailableError: this system is not Linux.
    """

    def __init__(self, array: NDArray[Any], *, limit_bytes: int) -> None:
        limit_bytes = require_count("limit_bytes", limit_bytes, minimum=1)
        self._pages = _mapped_pages(array)
        self._array: NDArray[Any] | None = array
        self._limit_bytes = limit_bytes
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._drops = 0

    @property
    def drops(self) -> int:
        """The number of times that the pages were dropped so far."""
        return self._drops

    def __enter__(self) -> ResidentLimit:
        if self._thread is not None or self._array is None:
            raise errors.BufferStateError("a ResidentLimit serves for one with statement")
        watching = threading.Thread(target=self._watch, name="zero_copy-resident-limit", daemon=True)
        self._thread = start(watching)
        return self

    def close(self) -> None:
        """Stop the thread and release the array. May be called repeatedly."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)
        self._array = None

    def _watch(self) -> None:
        most_bytes = _resident_file_bytes() + self._limit_bytes
        while not self._stop.wait(_POLL_S):
            if _resident_file_bytes() > most_bytes:
                _drop(*self._pages)
                self._drops += 1


def _mapped_pages(array: NDArray[Any]) -> tuple[int, int]:
    """Return the addresses of the first whole page of an array and behind the last, having checked it."""
    if sys.platform != "linux":
        raise errors.NativeUnavailableError("pages can be dropped on Linux only")
    if not isinstance(array, np.ndarray):
        raise TypeError(f"array must be a NumPy array, got {type(array).__name__}")
    low, high = _bounds(array)
    if not _is_shared_file(low, high):
        raise errors.BufferError(
            "the array is no shared mapping of a file, so its pages cannot be dropped; map it with "
            'numpy.load(path, mmap_mode="r")'
        )
    page = mmap.PAGESIZE
    return -(-low // page) * page, high // page * page


def _bounds(array: NDArray[Any]) -> tuple[int, int]:
    """Return the lowest address of an array's elements and the one behind the highest."""
    low = high = array.__array_interface__["data"][0]
    if not array.size:
        return low, low
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + array.itemsize


def _is_shared_file(low: int, high: int) -> bool:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            span, access, _, _, inode = line.split()[:5]
            begin, _, end = span.partition("-")
            if int(begin, 16) <= low < high <= int(end, 16):
                return access[3] == "s" and inode != "0"
    return False


def _drop(first: int, end: int) -> None:
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if end > first and madvise(first, end - first, mmap.MADV_DONTNEED):
        raise errors.BufferError(f"madvise failed: {os.strerror(ctypes.get_errno())}")


def _resident_file_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[2]) * mmap.PAGESIZE
