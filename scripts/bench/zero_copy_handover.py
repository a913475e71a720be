"""How long a hand-over from a NumPy producer to TensorFlow takes, by size and way.

The ways: `convert_to_tensor`; `as_tensor`; `mapped_buffer`, a turn of `numpy()` and `tensor()`;
`as_tensor_misaligned`, an ordinary NumPy array, which has to be copied.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from overlap_train import zero_copy

__all__ = ["SIZES", "measure_hand_overs"]

SIZES = tuple(4096 << doublings for doublings in range(0, 15, 2))  # 4 KiB to 64 MiB
_ROUND = 10


def measure_hand_overs(sizes: Sequence[int] = SIZES, *, budget_s: float = 1.0) -> list[dict[str, Any]]:
    """Measures all ways, in alternating rounds, for about `budget_s` for each size in bytes."""
    found = []
    for size in sizes:
        ways = _ways(size)
        repeats = max(15, min(500, int(budget_s / (len(ways) * 2 * (3e-5 + size * 2e-10)))))
        found += _measure(ways, size, repeats)
    return found


def _ways(size_bytes: int) -> dict[str, Callable[[], Any]]:
    import tensorflow as tf

    aligned = zero_copy.empty(size_bytes, np.uint8)
    misaligned = zero_copy.empty(size_bytes + 16, np.uint8)[16:]
    buffer = zero_copy.MappedBuffer(size_bytes, np.uint8, backend="host")
    for array in (aligned, misaligned, buffer.numpy()):
        array[...] = 1

    def turn() -> Any:
        buffer.numpy()
        return buffer.tensor()

    return {
        "convert_to_tensor": lambda: tf.convert_to_tensor(aligned),
        "as_tensor": lambda: zero_copy.as_tensor(aligned),
        "mapped_buffer": turn,
        "as_tensor_misaligned": lambda: zero_copy.as_tensor(misaligned),
    }


def _measure(ways: dict[str, Callable[[], Any]], size_bytes: int, repeats: int) -> list[dict[str, Any]]:
    import tensorflow as tf

    handed: dict[str, list[float]] = {way: [] for way in ways}
    read: dict[str, list[float]] = {way: [] for way in ways}
    copied: dict[str, int] = {}
    for _ in range(-(-repeats // _ROUND)):
        # In rounds, of which the first measurement is dropped: a copy of megabytes by one way empties the
        # processor's caches for the next.
        for way, hand_over in ways.items():
            before = zero_copy.statistics().copied_bytes
            handed[way] += [_time_us(hand_over) for _ in range(_ROUND + 1)][1:]
            copied[way] = (zero_copy.statistics().copied_bytes - before) // (_ROUND + 1)
            read[way] += [_time_us(lambda: tf.gather(hand_over(), 0)) for _ in range(_ROUND + 1)][1:]  # noqa: B023
    # TensorFlow does not count what it copies; the addresses tell that it is everything.
    copied["convert_to_tensor"] = size_bytes
    return [
        {
            "way": way,
            "size_bytes": size_bytes,
            "repeats": len(handed[way]),
            "median_us": statistics.median(handed[way]),
            "p10_us": float(np.percentile(handed[way], 10)),
            "p90_us": float(np.percentile(handed[way], 90)),
            # Until an operation that reads one element has ended.
            "first_operation_us": statistics.median(read[way]),
            "bytes_copied": copied[way],
        }
        for way in ways
    ]


def _time_us(work: Callable[[], Any]) -> float:
    begin = time.perf_counter_ns()
    result = work()
    elapsed_ns = time.perf_counter_ns() - begin
    del result  # releasing it is not part of the hand-over
    return elapsed_ns / 1e3
