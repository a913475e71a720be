"""TensorFlow tensors on the memory of NumPy arrays, NumPy arrays on that of tensors, and when that is better.

On a GPU that shares its memory with the CPU, reading host memory in place is always quicker than copying it.
On a discrete GPU it is so for small inputs that are read once; `measure_crossover` measures up to which size,
and stores that in a file. On the CPU it is so at any size (`scripts/compare_zero_copy.sh`).

Everything here may be called from any thread. The memory of an array lives until the last tensor that shows
it has gone, whichever thread drops that.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf
from numpy.typing import DTypeLike, NDArray

from overlap_train import errors
from overlap_train._support.arguments import is_count, require_choice, short_repr
from overlap_train._support.caches import copy_times
from overlap_train._support.files import read_regular, replace_content
from overlap_train.zero_copy import dlpack
from overlap_train.zero_copy.pool import HostBackend

_MOST_BYTES = 1 << 20

Mode = Literal["auto", "copy", "zero_copy"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Say whether memory is shared, and why.

    Attributes:
        zero_copy: True to share, False to copy.
        reason: the reason, as a clause that can follow "because".
    """

    zero_copy: bool
    reason: str


def choose_sharing(mode: Mode, size_bytes: int, *, integrated: bool, crossover_bytes: int | None) -> Choice:
    """Decide for an input that a GPU reads once; up to `crossover_bytes` sharing was measured as quicker."""
    if mode != "auto":
        return Choice(mode == "zero_copy", f"mode={mode!r} was asked for")
    if integrated:
        return Choice(True, "the GPU shares its memory with the CPU")
    if crossover_bytes is None:
        return Choice(False, "the GPU has its own memory and no crossover has been measured for it")
    if size_bytes <= crossover_bytes:
        return Choice(True, f"{size_bytes} bytes are within the measured crossover of {crossover_bytes}")
    return Choice(False, f"{size_bytes} bytes are beyond the measured crossover of {crossover_bytes}")


def keep_crossover(key: str, crossover_bytes: int) -> None:
    """Store a device's crossover atomically. It holds for this process even if writing raises OSError."""
    stored_crossovers()[key] = crossover_bytes
    path = copy_times()
    if path is None:
        raise OSError("there is no home directory to keep a crossover in; set XDG_CACHE_HOME")
    replace_content(path, json.dumps(_read() | stored_crossovers(), indent=1, sort_keys=True))


@functools.cache
def stored_crossovers() -> dict[str, int]:
    """Return the crossovers in bytes by device: of the file, which is read once, and of this process."""
    return _read()


def _read() -> dict[str, int]:
    """Return what the file has; a damaged one counts as empty, as everything in it can be measured again."""
    path = copy_times()
    try:
        content: Any = {} if path is None else json.loads(read_regular(path, most_bytes=_MOST_BYTES).decode())
        return {key: value for key, value in content.items() if is_count(value)}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


# Eigen aborts the process on operands that are aligned less, and DLPack's own entrance does not check it.
TENSOR_ALIGNMENT = 64
SHARED_DTYPES = frozenset(
    np.dtype(tf.as_dtype(name).as_numpy_dtype)
    for name in [
        *("bool", "float16", "float32", "float64", "complex64", "complex128"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    ]
)
_SHARED = Choice(True, "its layout, alignment and dtype are TensorFlow's own")
_log = logging.getLogger(__name__)
_host = HostBackend()


@dataclass(frozen=True, slots=True)
class Statistics:
    """Count what `as_tensor` and `MappedBuffer.tensor` have done in this process so far.

    Attributes:
        shared: number of arrays that became tensors without a copy.
        copied: number of arrays that were copied.
        copied_bytes: the bytes of the copies.
    """

    shared: int = 0
    copied: int = 0
    copied_bytes: int = 0


_counts_lock = threading.Lock()
_counts = Statistics()


def statistics() -> Statistics:
    """Return the counts so far; the difference of two readings is what happened in between. Any thread."""
    return _counts


def count(*, shared: int = 0, copied: int = 0, copied_bytes: int = 0) -> None:
    """Add to the counts of this process."""
    global _counts
    with _counts_lock:
        _counts = Statistics(
            _counts.shared + shared, _counts.copied + copied, _counts.copied_bytes + copied_bytes
        )


def explain(array: NDArray[Any]) -> Choice:
    """Return whether `as_tensor` can share the memory of an array, and why or why not. Any thread.

    Raises:
        TypeError: `as_tensor` would refuse the array because of its type.
    """
    return _explain(_plain(array))


def _explain(array: NDArray[Any]) -> Choice:
    dtype = array.dtype
    if dtype not in SHARED_DTYPES:
        if not dtype.isnative:
            return Choice(False, f"its numbers are stored in the other byte order ({dtype.str})")
        return Choice(False, f"TensorFlow takes no {dtype.name} by DLPack")
    if array.size == 0:
        return Choice(False, "it has no elements, so no memory to share")
    if not array.flags.c_contiguous:
        return Choice(False, f"it is not C-contiguous (shape {array.shape}, strides {array.strides})")
    misaligned = _address(array) % TENSOR_ALIGNMENT
    if misaligned:
        return Choice(
            False,
            f"it begins {misaligned} bytes behind a multiple of the {TENSOR_ALIGNMENT} TensorFlow needs",
        )
    return _SHARED


def as_tensor(array: NDArray[Any], *, mode: Mode = "auto") -> tf.Tensor:
    """Make a CPU tensor on an array's own memory, or on a copy if the memory cannot be shared.

    TensorFlow assumes that a tensor never changes. So once an array is shared, do not write to it while a
    tensor made from it exists, or anything that TensorFlow derived from that without a copy: the value of a
    `tf.Variable`, a reshaped tensor, a dataset. TensorFlow never writes to the memory either, except by the
    deprecated `tf.raw_ops.Inplace*` operations, so a read-only memory map may be shared.

    An array mapped by `numpy.load(path, mmap_mode="r")` can be shared, because `numpy.save` aligns the data.
    Pages are read from disk when an operation touches them. Truncating the file while it is in use ends the
    process with SIGBUS, as with NumPy alone.

    A copy is made once, into aligned memory. The reason is logged at level INFO, `explain` returns it
    beforehand, and `statistics` counts the bytes. May be called from any thread.

    Args:
        array: an array of any shape, of numbers, booleans or strings.
        mode: "auto" shares where possible; "copy" never shares; "zero_copy" raises instead of copying.

    Returns:
        An eager tensor of the same shape, dtype and values, on `CPU:0`.

    Raises:
        TypeError: `array` is not an array, is masked, or its dtype has no counterpart in TensorFlow.
        ValueError: the mode is unknown.
        errors.BufferError: mode is "zero_copy" and a copy would be needed, or there is no memory for a copy.
    """
    require_choice("mode", mode, get_args(Mode))
    plain = _plain(array)
    choice = _explain(plain)
    if mode == "zero_copy" and not choice.zero_copy:
        raise errors.BufferError(
            f"cannot share an array with TensorFlow: {choice.reason}. Store it such that it can be, as "
            f'with zero_copy.MappedBuffer or numpy.save, or pass mode="auto" to copy it'
        )
    if mode == "copy":
        choice = Choice(False, "mode='copy' was asked for")
    if choice.zero_copy:
        # The owner is the array, not only its memory: a subclass may free that when it dies.
        tensor, _ = share(_address(plain), plain.shape, plain.dtype, array)
        count(shared=1)
        return tensor
    tensor = _copy(plain)
    count(copied=1, copied_bytes=plain.nbytes)
    _log.info("copied an array of %d bytes for TensorFlow: %s", plain.nbytes, choice.reason)
    return tensor


def empty(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return an uninitialised array that `as_tensor` can share; an array of `numpy.empty` seldom can.

    Args:
        shape: the shape, or the length of one dimension.
        dtype: a dtype of numbers or booleans.

    Raises:
        errors.BufferError: there is not enough memory.
        TypeError: the dtype is not one of numbers, or the shape has the wrong type.
        ValueError: the shape is invalid.
    """
    dtype = any_dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"aligned memory holds numbers, got dtype {dtype}")
    checked = checked_shape(shape)
    return _empty(math.prod(checked) * dtype.itemsize).view(dtype).reshape(checked)


def _empty(size_bytes: int) -> NDArray[np.uint8]:
    block = _host.allocate(size_bytes)
    start = block.address - _address(block.memory)
    memory: NDArray[np.uint8] = block.memory[start : start + size_bytes]
    return memory


def as_array(tensor: tf.Tensor) -> NDArray[Any]:
    """Return a read-only array on a CPU tensor's own memory; the array keeps the memory alive. Any thread.

    Raises:
        TypeError: `tensor` is not an eager tensor of numbers or booleans.
        errors.BufferError: the tensor is not on the CPU.
    """
    if not isinstance(tensor, tf.Tensor) or not hasattr(tensor, "numpy"):
        raise TypeError(
            f"as_array takes an eager tensor, got {type(tensor).__name__}; of a variable, pass read_value()"
        )
    if np.dtype(tensor.dtype.as_numpy_dtype or object) not in SHARED_DTYPES:
        raise TypeError(f"the memory of a tensor of {tensor.dtype.name} is not shared; call its numpy()")
    device = tensor.device.rpartition("/device:")[2]
    if not device.startswith("CPU:"):
        raise errors.BufferError(f"the tensor is on {device}; copy it to the CPU with tf.identity first")
    if 0 in tensor.shape:
        empty = np.empty(tuple(tensor.shape), tensor.dtype.as_numpy_dtype)
        empty.flags.writeable = False
        return empty
    return np.asarray(memoryview(tensor))


def share(
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    owner: object,
    *,
    gpu: int | None = None,
    device_address: int | None = None,
) -> tuple[tf.Tensor, weakref.ref[dlpack.Keeper]]:
    """Make a tensor on memory that `owner` keeps, and a reference that dies with the last tensor on it.

    The caller answers for alignment, a C-contiguous layout that is not empty, and one of `SHARED_DTYPES` in
    native byte order. With `gpu`, the tensor is there; `device_address` is where that GPU finds the memory.
    Raises BufferError if TensorFlow refuses it; the memory is then free.
    """
    keeper = dlpack.Keeper(address, shape, dtype, owner)
    watch = weakref.ref(keeper)
    capsule = dlpack.capsule(keeper, gpu=gpu, address=device_address)
    del keeper
    try:
        tensor = tf.experimental.dlpack.from_dlpack(capsule)
    except Exception as error:
        # When TensorFlow refuses a capsule, it calls the deleter in some cases and not in others.
        if watch() is None:
            dlpack.defuse(capsule)
        raise errors.BufferError(f"TensorFlow refused the memory: {error}") from error
    return tensor, watch


def _copy(array: NDArray[Any]) -> tf.Tensor:
    dtype = array.dtype.newbyteorder("=")
    if dtype not in SHARED_DTYPES or array.size == 0:
        try:
            with tf.device("CPU:0"):
                return tf.convert_to_tensor(array.astype(dtype, copy=False))
        except (TypeError, ValueError, NotImplementedError, tf.errors.OpError) as error:
            raise TypeError(f"an array of dtype {array.dtype} cannot become a tensor: {error}") from error
    target = _empty(array.nbytes).view(dtype).reshape(array.shape)
    np.copyto(target, array)
    return share(_address(target), target.shape, dtype, target)[0]


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected a NumPy array, got {type(array).__name__}; convert it with numpy.asarray")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("a masked array has no counterpart in TensorFlow; pass array.filled(value)")
    if array.dtype.names is not None:
        raise TypeError(
            f"a structured array ({array.dtype}) has no counterpart in TensorFlow; pass its fields"
        )
    return np.asarray(array)


def checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple, or raise TypeError or ValueError."""
    try:
        return np.broadcast_to(np.False_, shape).shape  # NumPy's own checks, at no cost in memory
    except Exception as error:
        kind = ValueError if isinstance(error, (ValueError, OverflowError)) else TypeError
        raise kind(f"shape must be that of an array, got {short_repr(shape)}: {error}") from error


def checked_dtype(dtype: DTypeLike | tf.DType) -> np.dtype[Any]:
    """Return the dtype of a buffer, or raise TypeError for one that cannot be shared."""
    checked = any_dtype(dtype)
    if checked not in SHARED_DTYPES:
        names = ", ".join(sorted(shared.name for shared in SHARED_DTYPES))
        raise TypeError(f"dtype: a buffer holds one of {names} in native byte order, got {checked!r}")
    return checked


def any_dtype(dtype: DTypeLike | tf.DType) -> np.dtype[Any]:
    """Return what NumPy makes of a dtype; raises TypeError where that is nothing."""
    try:
        return np.dtype(dtype.as_numpy_dtype if isinstance(dtype, tf.DType) else dtype)
    except Exception as error:
        raise TypeError(f"dtype must be one that NumPy knows, got {short_repr(dtype)}") from error


def checked_device(device: str) -> int | None:
    """Return the number of a GPU, or None for the CPU."""
    if not isinstance(device, str):
        raise TypeError(f"device must be a name such as 'CPU:0', got {short_repr(device)}")
    kind, _, number = device.upper().rpartition("/DEVICE:")[2].lstrip("/").partition(":")
    if kind == "CPU" and number in ("", "0"):
        return None
    if kind == "GPU" and (number == "" or (number.isascii() and number.isdigit())):
        return int(number or 0)
    raise ValueError(f'device must be "CPU:0" or a GPU such as "GPU:0", got {short_repr(device)}')
