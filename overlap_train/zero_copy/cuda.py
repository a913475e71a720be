"""Pinned host memory that a GPU reads in place, through the CUDA driver library found at run time.

Nothing of CUDA is needed to install or import this. `libcuda` comes with the display driver; it shares the
device's primary context with TensorFlow's CUDA runtime, so both see one address space.

Source: mapped memory in place of pinned memory and a copy is what P3 measures on a Jetson TK1
(`cudaHostAlloc` and `cudaHostGetDevicePointer` there, the driver functions beneath them here).

A `CudaBackend` may be used from any thread except CUDA's own call-back threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from overlap_train import errors
from overlap_train._support.arguments import is_text, short_repr
from overlap_train.zero_copy.pool import ALIGNMENT, Block, HostBackend, Pool

LIBRARIES = ("libcuda.so.1", "libcuda.so")

_PORTABLE_MAPPED = 0x01 | 0x02  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
_INTEGRATED = 18  # CU_DEVICE_ATTRIBUTE_INTEGRATED
_CAN_MAP_HOST_MEMORY = 19
_int_p = ctypes.POINTER(ctypes.c_int)
_pointer_p = ctypes.POINTER(ctypes.c_void_p)
_SIGNATURES: dict[str, Sequence[object]] = {
    "cuInit": [ctypes.c_uint],
    "cuDriverGetVersion": [_int_p],
    "cuDeviceGetCount": [_int_p],
    "cuDeviceGet": [_int_p, ctypes.c_int],
    "cuDeviceGetName": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "cuDeviceGetAttribute": [_int_p, ctypes.c_int, ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [_pointer_p, ctypes.c_int],
    "cuCtxPushCurrent_v2": [ctypes.c_void_p],
    "cuCtxPopCurrent_v2": [_pointer_p],
    "cuCtxSynchronize": [],
    "cuMemHostAlloc": [_pointer_p, ctypes.c_size_t, ctypes.c_uint],
    "cuMemHostGetDevicePointer_v2": [_pointer_p, ctypes.c_void_p, ctypes.c_uint],
    "cuMemFreeHost": [ctypes.c_void_p],
    "cuGetErrorName": [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)],
}


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """What decides whether mapped memory pays on a device."""

    name: str  # such as "NVIDIA H200"
    integrated: bool  # whether the GPU shares its memory with the CPU, as on a Jetson
    can_map: bool  # whether it can read host memory in place
    driver_version: int  # such as 12040 for CUDA 12.4


class Driver:
    """The functions of the CUDA driver library, with their errors as exceptions.

    Raises NativeUnavailableError if there is no such library, or it is too old or refuses to start.
    """

    def __init__(self, library: str | os.PathLike[str] | None = None) -> None:
        self._library = _load(LIBRARIES if library is None else (os.fspath(library),))
        for name, arguments in _SIGNATURES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise errors.NativeUnavailableError(
                    f"the CUDA driver library has no {name}; install a driver for CUDA 12 or newer"
                ) from error
            function.argtypes = arguments
            function.restype = ctypes.c_int
        try:
            self.call("cuInit", 0)
        except errors.BufferError as error:
            raise errors.NativeUnavailableError(f"the CUDA driver does not start: {error}") from error
        self.version = self.integer("cuDriverGetVersion")

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; anything but success is an `errors.BufferError`."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise errors.BufferError(f"{name} failed with {self._error_name(code)} ({code})")

    def integer(self, name: str, *arguments: object) -> int:
        """Call a function whose first parameter points to an `int` that it fills."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def pointer(self, name: str, *arguments: object) -> int:
        """Call a function whose first parameter points to a pointer that it fills."""
        value = ctypes.c_void_p()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value or 0

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
            return "unknown error"
        return text.value.decode(errors="replace")


class CudaBackend(HostBackend):
    """Blocks of pinned host memory, mapped into the address space of the first GPU that the driver counts.

    Raises NativeUnavailableError if there is no driver, no GPU, or it cannot map host memory.
    """

    name = "cuda"
    frees_anywhere = False

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver or Driver()
        self._pid = os.getpid()
        self._lock = threading.Lock()  # two threads may release one block
        if not self._count():
            raise errors.NativeUnavailableError("the CUDA driver shows no GPU (see CUDA_VISIBLE_DEVICES)")
        self._device = self._driver.integer("cuDeviceGet", 0)
        self.attributes = self._read_attributes()
        if not self.attributes.can_map:
            raise errors.NativeUnavailableError(f"{self.attributes.name} cannot map host memory")
        self._context = self._driver.pointer("cuDevicePrimaryCtxRetain", self._device)

    def allocate(self, size_bytes: int) -> Block:
        """Allocate a pinned, mapped block."""
        with self._current():
            address = self._driver.pointer("cuMemHostAlloc", size_bytes, _PORTABLE_MAPPED)
            try:
                if address % ALIGNMENT:
                    raise errors.BufferError(f"the driver's block at {address:#x} is not {ALIGNMENT}-aligned")
                mapped = self._driver.pointer("cuMemHostGetDevicePointer_v2", address, 0)
            except errors.BufferError:
                self._driver.call("cuMemFreeHost", address)
                raise
        return Block(address, size_bytes, device_address=mapped, memory=address, pid=self._pid)

    def release(self, block: Block) -> None:
        """Unpin and free a block, which counts as freed also if the driver refuses; twice is once."""
        if block.pid != os.getpid():
            return
        with self._lock:
            if block.released:
                return
            block.released = True
        with self._current():
            self._driver.call("cuMemFreeHost", block.memory)

    def synchronize(self) -> None:
        """Wait for all work of the device: TensorFlow does not show its streams, so nothing less is safe."""
        self.require_own_process()
        with self._current():
            self._driver.call("cuCtxSynchronize")

    def _count(self) -> int:
        try:
            return self._driver.integer("cuDeviceGetCount")
        except errors.BufferError as error:
            raise errors.NativeUnavailableError(f"the CUDA driver shows no GPU: {error}") from error

    def _read_attributes(self) -> DeviceAttributes:
        name = ctypes.create_string_buffer(256)
        self._driver.call("cuDeviceGetName", name, len(name), self._device)

        def attribute(which: int) -> bool:
            return bool(self._driver.integer("cuDeviceGetAttribute", which, self._device))

        return DeviceAttributes(
            name=name.value.decode(errors="replace"),
            integrated=attribute(_INTEGRATED),
            can_map=attribute(_CAN_MAP_HOST_MEMORY),
            driver_version=self._driver.version,
        )

    def require_own_process(self) -> None:
        """Raise `errors.BufferStateError` in a process that was forked after this backend was made."""
        if self._pid != os.getpid():
            raise errors.BufferStateError(
                f"this CUDA backend belongs to process {self._pid}; CUDA does not survive a fork: start "
                f'workers with multiprocessing.get_context("spawn")'
            )

    def _current(self) -> contextlib.ExitStack:
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        undo = contextlib.ExitStack()
        undo.callback(self._driver.pointer, "cuCtxPopCurrent_v2")
        return undo


def _load(names: Sequence[str]) -> ctypes.CDLL:
    reasons = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise errors.NativeUnavailableError(f"no CUDA driver library here: {'; '.join(reasons)}")


_lock = threading.Lock()
_host = Pool(HostBackend())
_cuda: Pool | errors.NativeUnavailableError | None = None


def shared_pool(backend: Literal["auto", "host", "cuda"] = "auto") -> Pool:
    """Return the pool of a backend; "auto" means "cuda" if there is a usable GPU, and "host" otherwise.

    Each process looks for a GPU once.

    Raises:
        ValueError: there is no backend of that name.
        errors.NativeUnavailableError: the name is "cuda" and there is no usable GPU.
    """
    if not is_text(backend, "auto", "host", "cuda"):
        raise ValueError(f'backend must be "auto", "host", "cuda" or a Pool, got {short_repr(backend)}')
    if is_text(backend, "host"):
        return _host
    cuda = _find_cuda()
    if isinstance(cuda, Pool):
        return cuda
    if is_text(backend, "auto"):
        return _host
    raise errors.NativeUnavailableError(str(cuda)) from cuda


def _find_cuda() -> Pool | errors.NativeUnavailableError:
    global _cuda
    with _lock:
        if _cuda is None:
            try:
                _cuda = Pool(CudaBackend())
            except errors.NativeUnavailableError as error:
                _cuda = error
        return _cuda
