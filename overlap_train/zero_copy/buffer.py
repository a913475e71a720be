"""`MappedBuffer`: memory that a producer writes with NumPy and TensorFlow reads in place, in turns.

TensorFlow takes a tensor for immutable, so a buffer is either written or read, never both:

    WRITE  numpy() gives arrays          no tensor is alive
      |    tensor()
    READ   tensor() gives tensors        earlier arrays are read-only for good
      |    numpy(), once every tensor has gone
    WRITE  ...

Each hand-over waits for the device, where there is one. A use out of turn raises BufferStateError.
`measure_crossover` finds up to which size a GPU reads such memory quicker than a copy of it.

`MappedBuffer._lock` guards the turn; any thread may take it. A tensor that dies, perhaps on a thread of
TensorFlow's, takes no lock: weak references show it.
"""

from __future__ import annotations

import math
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf
from numpy.typing import DTypeLike, NDArray

from overlap_train import errors
from overlap_train._support.arguments import require_choice
from overlap_train._support.closing import Closing
from overlap_train.zero_copy import dlpack, tensors
from overlap_train.zero_copy.cuda import CudaBackend, DeviceAttributes, shared_pool
from overlap_train.zero_copy.pool import Lease, Pool
from overlap_train.zero_copy.tensors import (
    Choice,
    Mode,
    checked_device,
    checked_dtype,
    checked_shape,
    choose_sharing,
    keep_crossover,
    stored_crossovers,
)


class MappedBuffer(Closing):
    """Hold host memory that NumPy writes and TensorFlow, or a GPU, reads without a copy, in turns.

    The memory is 256-byte aligned and comes from a pool. The buffer, and the arrays and tensors made from it,
    keep it; it goes back to the pool when the last of them is gone. Its content is undefined at first.
    Methods may be called from any thread.

    Arrays derived from `numpy()`, such as slices, are counted, and must be gone at the hand-over. A
    `memoryview`, a `ctypes` pointer or an array of another library cannot be counted: keep none of these.

    Args:
        shape: the shape, or the length of one dimension.
        dtype: a dtype of numbers or booleans.
        backend: "host", "cuda" (pinned memory, mapped into GPU 0), or "auto": "cuda" if there is a GPU.

    Raises:
        TypeError: the shape, dtype or backend has the wrong type.
        ValueError: the shape, dtype or backend is invalid.
        errors.BufferError: there is not enough memory.
        errors.NativeUnavailableError: the backend is "cuda" and there is no usable GPU; the message says why.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike = np.float32,
        *,
        backend: Literal["auto", "host", "cuda"] | Pool = "auto",  # a pool in tests
    ) -> None:
        self._shape = checked_shape(shape)
        self._dtype = checked_dtype(dtype)
        self._size_bytes = math.prod(self._shape) * self._dtype.itemsize
        self._pool = backend if isinstance(backend, Pool) else shared_pool(backend)
        self._lock = threading.Lock()
        self._lease: Lease | None = self._pool.lease(self._size_bytes)
        self._is_read = False
        self._array: weakref.ref[NDArray[Any]] | None = None
        self._readers: list[weakref.ref[dlpack.Keeper]] = []
        self._begin_writing(self._lease)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array and of the tensor."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array and of the tensor."""
        return self._dtype

    @property
    def backend(self) -> str:
        """The name of the backend: "host" or "cuda"."""
        return self._pool.backend.name

    @property
    def readers(self) -> int:
        """The number of tensors from `tensor()` that still share the memory."""
        return sum(reader() is not None for reader in list(self._readers))

    def numpy(self) -> NDArray[Any]:
        """Return the writable array, and begin the writer's turn.

        Until the next hand-over, the same array is returned as long as you hold it.

        Raises:
            errors.BufferStateError: a tensor still shares the memory, or the buffer is closed.
        """
        with self._lock:
            lease = self._open_lease()
            if self._is_read:
                if self.readers:
                    raise errors.BufferStateError(
                        f"{self.readers} tensor(s) still share this buffer, so it cannot be written; delete "
                        "them, and everything that TensorFlow derived from them without a copy, first"
                    )
                self._wait_for_device(lease)
                self._readers.clear()
                self._begin_writing(lease)
                self._is_read = False
            array = None if self._array is None else self._array()
            if array is None:
                array = self._root.view(self._dtype)
                self._array = weakref.ref(array)
            return array

    def tensor(self, device: str = "CPU:0", *, mode: Mode = "auto") -> tf.Tensor:
        """Return a tensor with the buffer's content, and begin the reader's turn.

        The array from `numpy()` becomes read-only for good, whatever the mode.

        Args:
            device: "CPU:0", or a GPU such as "GPU:0".
            mode: "zero_copy" shares the memory or raises. "copy" never shares. "auto" shares on the CPU, and
                on a GPU if it has no memory of its own or the buffer is within the measured crossover.
                `choice` returns the reason.

        Raises:
            errors.BufferStateError: an array derived from `numpy()` still exists and could be written, or the
                buffer is closed.
            errors.BufferError: TensorFlow lacks the device, or mode is "zero_copy" and the device cannot
                share the memory.
            ValueError: the mode or the device is unknown.
        """
        choice = self.choice(device, mode=mode)
        if mode == "zero_copy" and not choice.zero_copy:
            raise errors.BufferError(f"cannot share a buffer with {device}: {choice.reason}")
        gpu = checked_device(device)
        if gpu is not None and gpu >= len(tf.config.list_logical_devices("GPU")):
            raise errors.BufferError(f"TensorFlow has no {device} (see tf.config.list_logical_devices())")
        with self._lock:
            lease = self._open_lease()
            if not self._is_read:
                self._end_writing()
                self._is_read = True
                self._wait_for_device(lease)
            if choice.zero_copy:
                tensors.count(shared=1)
                return self._shared(lease, gpu)
            tensors.count(copied=1, copied_bytes=self._size_bytes)
            return self._copied(lease, gpu)

    def choice(self, device: str = "CPU:0", *, mode: Mode = "auto") -> Choice:
        """Return whether `tensor` with the same arguments would share the memory, and why."""
        require_choice("mode", mode, get_args(Mode))
        gpu = checked_device(device)
        if mode == "copy":
            return Choice(False, "mode='copy' was asked for")
        if not self._size_bytes:
            return Choice(False, "it has no elements, so no memory to share")
        if gpu is None:
            return Choice(True, "the CPU reads host memory in place")
        backend = self._pool.backend
        if not isinstance(backend, CudaBackend) or gpu != 0:
            return Choice(False, f"its memory ({backend.name}) is not mapped into GPU {gpu}")
        visible, logical = tf.config.list_physical_devices("GPU"), tf.config.list_logical_devices("GPU")
        if gpu >= len(logical) or len(visible) != len(logical):
            return Choice(
                False, f"of {len(visible)} GPUs and {len(logical)} logical ones, none is surely GPU {gpu}"
            )
        attributes = backend.attributes
        crossover_bytes = stored_crossovers().get(crossover_key(attributes))
        return choose_sharing(
            mode, self._size_bytes, integrated=attributes.integrated, crossover_bytes=crossover_bytes
        )

    def close(self) -> None:
        """Release the memory. Existing arrays and tensors stay valid. May be called repeatedly."""
        with self._lock:
            self._lease = None
            self._root = np.empty(0)

    def __repr__(self) -> str:
        state = "closed" if self._lease is None else "read" if self._is_read else "write"
        return f"MappedBuffer(shape={self._shape}, dtype={self._dtype}, backend={self.backend!r}, {state})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a MappedBuffer is memory of one process; send numpy().copy() instead")

    def _open_lease(self) -> Lease:
        if self._lease is None:
            raise errors.BufferStateError("this buffer is closed")
        return self._lease

    def _begin_writing(self, lease: Lease) -> None:
        # NumPy bases every derived array on `_root`, which users never get. So each reference to it beyond
        # our own and that of the array of `numpy()` is a derived array.
        self._root = dlpack.view(dlpack.Keeper(lease.block.address, self._shape, self._dtype, lease))
        self._array = None
        self._own_references = sys.getrefcount(self._root)

    def _end_writing(self) -> None:
        array = None if self._array is None else self._array()
        derived = sys.getrefcount(self._root) - self._own_references - (array is not None)
        if derived > 0:
            raise errors.BufferStateError(
                f"{derived} array(s) derived from numpy() are still alive and could be written while "
                "TensorFlow reads; delete them before tensor()"
            )
        # With its root read-only too, NumPy refuses to make the array writable again.
        self._root.flags.writeable = False
        if array is not None:
            array.flags.writeable = False

    def _shared(self, lease: Lease, gpu: int | None) -> tf.Tensor:
        block = lease.block
        if gpu is not None:
            block.shown_to_device = True
        tensor, reader = tensors.share(
            block.address, self._shape, self._dtype, lease, gpu=gpu, device_address=block.device_address
        )
        self._readers = [other for other in self._readers if other() is not None]
        self._readers.append(reader)
        return tensor

    def _copied(self, lease: Lease, gpu: int | None) -> tf.Tensor:
        device = "CPU:0" if gpu is None else f"GPU:{gpu}"
        if not self._size_bytes:
            with tf.device(device):
                return tf.zeros(self._shape, self._dtype)
        if gpu is None:
            return tensors.as_tensor(self._root.view(self._dtype), mode="copy")
        # From pinned memory TensorFlow copies without a detour; the source counts as a reader until it has.
        source = self._shared(lease, None)
        lease.block.shown_to_device = True
        with tf.device(device):
            return tf.identity(source)

    def _wait_for_device(self, lease: Lease) -> None:
        self._pool.backend.synchronize()
        lease.block.shown_to_device = False


def crossover_key(attributes: DeviceAttributes) -> str:
    """Return the key of a measured crossover: the GPU, its driver and TensorFlow."""
    return f"{attributes.name}, driver {attributes.driver_version}, TensorFlow {tf.__version__}"


_SIZES = tuple(4096 << doublings for doublings in range(0, 15, 2))  # 4 KiB to 64 MiB
_REPEATS = 21


@dataclass(frozen=True, slots=True)
class SizeTiming:
    """Medians for one size, from the filled buffer to the result on the host."""

    size_bytes: int
    copy_s: float
    zero_copy_s: float  # the GPU reads host memory


@dataclass(frozen=True, slots=True)
class Crossover:
    """Hold a measured crossover between sharing and copying.

    Attributes:
        crossover_bytes: the largest size in bytes up to which sharing was faster at every measured size; 0 if
            it never was.
        timings: the measurements, in ascending order of size.
    """

    crossover_bytes: int
    timings: tuple[SizeTiming, ...]


def measure_crossover() -> Crossover:
    """Measure up to which size GPU 0 reads shared memory faster than a copy of it, and keep that for "auto".

    A sum reads its input once. Copy and sharing alternate, after a warm-up of each; the time ends when the
    result is on the host.

    Raises:
        errors.NativeUnavailableError: there is no GPU that TensorFlow and the CUDA driver both see.
    """
    backend = shared_pool("cuda").backend
    if not isinstance(backend, CudaBackend) or not tf.config.list_logical_devices("GPU"):
        raise errors.NativeUnavailableError("TensorFlow shows no GPU on which to measure a crossover")
    timings = tuple(map(_time, _SIZES))
    crossover = Crossover(find_crossover(timings), timings)
    keep_crossover(crossover_key(backend.attributes), crossover.crossover_bytes)
    return crossover


def find_crossover(timings: Sequence[SizeTiming]) -> int:
    """Return the largest size up to which sharing was quicker at every size, in ascending order, or 0."""
    crossover = 0
    for timing in timings:
        if timing.zero_copy_s >= timing.copy_s:
            break
        crossover = timing.size_bytes
    return crossover


def _time(size_bytes: int) -> SizeTiming:
    with MappedBuffer(size_bytes // 4, backend="cuda") as buffer:
        buffer.numpy()[...] = 1.0
        seconds: dict[Mode, list[float]] = {"copy": [], "zero_copy": []}
        for repeat in range(_REPEATS + 2):
            for mode, samples in seconds.items():
                begin = time.perf_counter()
                tf.reduce_sum(buffer.tensor("GPU:0", mode=mode)).numpy()
                if repeat >= 2:
                    samples.append(time.perf_counter() - begin)
    return SizeTiming(size_bytes, statistics.median(seconds["copy"]), statistics.median(seconds["zero_copy"]))
