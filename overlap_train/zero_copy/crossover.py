"""Measures up to which size a GPU reads mapped host memory quicker than a copy of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from overlap_train import errors
from overlap_train._support.arguments import require_callable, require_count, require_each, require_flag
from overlap_train.zero_copy.buffer import MappedBuffer, crossover_key, crossovers
from overlap_train.zero_copy.cuda import CudaBackend, shared_pool
from overlap_train.zero_copy.policy import Mode

__all__ = ["Crossover", "SizeTiming", "find_crossover", "measure_crossover"]

SIZES = tuple(4096 << doublings for doublings in range(0, 15, 2))  # 4 KiB to 64 MiB


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


def measure_crossover(
    sizes: Sequence[int] = SIZES,
    *,
    repeats: int = 21,
    kernel: Callable[[tf.Tensor], tf.Tensor] | None = None,
    keep: bool = True,
) -> Crossover:
    """Measure up to which size GPU 0 reads shared memory faster than a copy of it.

    The kernel reads its input once. Copy and sharing alternate, after a warm-up of each; the time ends when
    the result is on the host.

    Args:
        sizes: sizes in bytes, each a positive multiple of 4.
        repeats: measurements for each size and way.
        kernel: a function from a float32 tensor `[n]` on the GPU to a tensor there; None means a sum.
        keep: whether to store the crossover in the user's cache, for `mode="auto"`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a size or the number of repeats is out of range.
        errors.NativeUnavailableError: there is no GPU that TensorFlow and the CUDA driver both see.
    """
    repeats = require_count("repeats", repeats, minimum=1)
    sizes = require_each("sizes", sizes, _size, expected="a sequence of sizes in bytes")
    if not sizes:
        raise ValueError("sizes is empty; pass at least one")
    require_callable("kernel", kernel, optional=True)
    keep = require_flag("keep", keep)
    backend = shared_pool("cuda").backend
    if not isinstance(backend, CudaBackend) or not tf.config.list_logical_devices("GPU"):
        raise errors.NativeUnavailableError("TensorFlow shows no GPU on which to measure a crossover")
    timings = tuple(_time(size, repeats, kernel or tf.reduce_sum) for size in sorted(sizes))
    crossover = Crossover(find_crossover(timings), timings)
    if keep:
        crossovers.put(crossover_key(backend.attributes), crossover.crossover_bytes)
    return crossover


def _size(name: str, value: object) -> int:
    size = require_count(name, value, minimum=4)
    if size % 4:
        raise ValueError(f"{name} must be positive multiples of 4; got {size}")
    return size


def find_crossover(timings: Sequence[SizeTiming]) -> int:
    """Return the largest size up to which sharing was quicker at every size measured, or 0."""
    crossover = 0
    for timing in sorted(timings, key=lambda timing: timing.size_bytes):
        if timing.zero_copy_s >= timing.copy_s:
            break
        crossover = timing.size_bytes
    return crossover


def _time(size_bytes: int, repeats: int, kernel: Callable[[tf.Tensor], tf.Tensor]) -> SizeTiming:
    with MappedBuffer(size_bytes // 4, backend="cuda") as buffer:
        buffer.numpy()[...] = 1.0
        seconds: dict[Mode, list[float]] = {"copy": [], "zero_copy": []}
        for repeat in range(repeats + 2):
            for mode, samples in seconds.items():
                begin = time.perf_counter()
                kernel(buffer.tensor("GPU:0", mode=mode)).numpy()
                if repeat >= 2:
                    samples.append(time.perf_counter() - begin)
    return SizeTiming(size_bytes, statistics.median(seconds["copy"]), statistics.median(seconds["zero_copy"]))
