"""Aligned blocks of memory for reuse, and the leases that own them.

A `Lease` is the only owner of a block while an array or tensor shows its memory. It is dropped on the thread
on which the last tensor dies, perhaps within the garbage collector. So returning a block takes no lock: it
goes on a queue, which the next caller of the pool empties. All other state is under `Pool._lock`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlap_train import errors

ALIGNMENT = 256  # bytes: what CUDA promises for its own allocations, and a multiple of what TensorFlow wants
_DEFAULT_LIMIT = 256 << 20
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Block:
    """A piece of memory of one backend."""

    address: int  # on the host; a multiple of `ALIGNMENT`
    size_bytes: int
    device_address: int | None = None  # where the GPU finds it
    memory: Any = None  # what the backend needs to free it
    pid: int = 0  # of the process that allocated it
    shown_to_device: bool = False  # work of the GPU may still be reading it
    released: bool = False


class HostBackend:
    """Ordinary memory; TensorFlow's CPU operations end before they let go of it. The base of all backends."""

    name = "host"
    frees_anywhere = True  # whether `release` may be called on any thread, a device's call-back thread too

    def allocate(self, size_bytes: int) -> Block:
        """Allocate an aligned block of at least `size_bytes`, or raise `errors.BufferError`."""
        try:
            memory = np.empty(size_bytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError, OverflowError) as error:
            raise errors.BufferError(f"cannot allocate {size_bytes} bytes of host memory: {error}") from error
        start = memory.__array_interface__["data"][0]
        return Block(start + (-start) % ALIGNMENT, size_bytes, memory=memory, pid=os.getpid())

    def release(self, block: Block) -> None:
        """Free a block; a second call does nothing."""
        block.memory = None
        block.released = True

    def synchronize(self) -> None:
        """Wait until the device has finished all work; here there is none."""

    def require_own_process(self) -> None:
        """Raise `errors.BufferStateError` in a forked process that cannot use this memory; here any can."""


class Lease:
    """Holds one block; dropping the last reference gives it back to its pool."""

    __slots__ = ("__weakref__", "_pool", "block")

    def __init__(self, pool: Pool, block: Block) -> None:
        self._pool = pool
        self.block = block

    def __del__(self) -> None:
        # While the interpreter ends, modules may be half gone; the system then frees everything at once.
        try:
            self._pool._give_back(self.block)
        except Exception:
            return


class Pool:
    """Lease blocks of memory of one backend, and keep up to `limit_bytes` of returned ones for reuse.

    Sizes are rounded up by at most a quarter, so that a block fits several requests. Any thread may call any
    method.
    """

    def __init__(self, backend: HostBackend, *, limit_bytes: int = _DEFAULT_LIMIT) -> None:
        self.backend = backend
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._returned: deque[Block] = deque()
        self._free: dict[int, list[Block]] = {}
        self._cached_bytes = 0
        self._live_bytes = 0

    def lease(self, size_bytes: int) -> Lease:
        """Lease a block of at least `size_bytes`, with undefined content.

        Raises `errors.BufferError` if the backend has no memory left, even after the kept blocks were freed.
        """
        self.backend.require_own_process()
        size = size_class(size_bytes)
        with self._lock:
            self._drain()
            block = self._take(size)
            self._live_bytes += size
        return Lease(self, block)

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the blocks in use, and of those that are kept for reuse."""
        with self._lock:
            self._drain()
            return self._live_bytes, self._cached_bytes

    def _take(self, size: int) -> Block:
        blocks = self._free.get(size)
        if blocks:
            block = blocks[-1]
            self._settle(block)
            blocks.pop()
            self._cached_bytes -= size
            return block
        try:
            return self.backend.allocate(size)
        except errors.BufferError:
            if not self._cached_bytes:
                raise
            self._shrink(0)
            return self.backend.allocate(size)

    def _give_back(self, block: Block) -> None:
        if not self.backend.frees_anywhere and block.pid != os.getpid():
            return  # A forked child inherited the lease, but not the device context that it belongs to.
        self._returned.append(block)
        # Freeing pinned memory is forbidden in a CUDA call-back, where a tensor may die: leave it queued.
        # Never wait for the lock here: this thread may hold it, with the garbage collector running inside.
        if self.backend.frees_anywhere and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._live_bytes -= block.size_bytes
            self._free.setdefault(block.size_bytes, []).append(block)
            self._cached_bytes += block.size_bytes
        self._shrink(self._limit_bytes)

    def _shrink(self, limit_bytes: int) -> None:
        for size in sorted(self._free, reverse=True):
            blocks = self._free[size]
            while blocks and self._cached_bytes > limit_bytes:
                block = blocks.pop()
                self._cached_bytes -= size
                try:
                    self._settle(block)
                    self.backend.release(block)
                except errors.OverlapTrainError as error:
                    _log.warning("a block of %d bytes could not be freed: %s", size, error)
            if not blocks:
                del self._free[size]

    def _settle(self, block: Block) -> None:
        # A tensor dies when the host drops it; the device may not have run yet what reads it.
        if block.shown_to_device:
            self.backend.synchronize()
            block.shown_to_device = False


def size_class(size_bytes: int) -> int:
    """Round a size up: to `ALIGNMENT` while small, later to a quarter of the next power of two."""
    step = max(ALIGNMENT, 1 << max(0, (size_bytes - 1).bit_length() - 3))
    return max(ALIGNMENT, -(-size_bytes // step) * step)
