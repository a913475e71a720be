"""Zero-copy next to what a user would write without it.

    scripts/compare_zero_copy.sh --output_dir results/zero_copy

The hand-over from NumPy to the first TensorFlow operation, 4 KiB to 64 MiB, by `convert_to_tensor`; by
`as_tensor`; by `mapped_buffer`, a turn of `numpy()` and `tensor()`; by `as_tensor_misaligned`, of an ordinary
NumPy array, which has to be copied. What a pinned copy costs on a GPU, `zero_copy.measure_crossover` tells.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from overlap_train import zero_copy
from scripts.bench import command
from scripts.bench.publish import Cells, Finding

SIZES = tuple(4096 << doublings for doublings in range(0, 15, 2))  # 4 KiB to 64 MiB
_ROUND = 10
_WORDS = """\
From a NumPy array to the first TensorFlow operation that reads it. Hand-overs alternate in rounds; their
times are medians. Paper P3 measured elsewhere, on an NVIDIA Jetson TK1 whose CPU and GPU share their memory
(GoogLeNet, one image, 100 runs): 0.46 s and 0.58 mWh by a pinned copy, 0.41 s and 0.37 mWh mapped."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns 0, whatever it shows."""
    line = _command()
    options = line.parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reads it once, when it is imported
    with line.journal(options) as journal:
        hand_overs: list[dict[str, Any]] = []
        for size in options.sizes:
            work = functools.partial(_measure, size, options.budget_s)
            hand_overs += journal.once(f"hand-over/{size}", work)
        (Path(options.output_dir) / "zero_copy.json").write_text(json.dumps(hand_overs, indent=1))
        page = Finding(
            question="What does a hand-over cost?",
            title="Zero-copy input",
            words=_WORDS,
            tables=[("Hand-over", _cells(hand_overs))],
            data=hand_overs,
        )
        line.show(page, options, journal)
    return 0


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


def _measure(size_bytes: int, budget_s: float) -> list[dict[str, Any]]:
    """Measures all ways in alternating rounds, for about `budget_s`."""
    import tensorflow as tf

    ways = _ways(size_bytes)
    repeats = max(15, min(500, int(budget_s / (len(ways) * 2 * (3e-5 + size_bytes * 2e-10)))))
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


def _cells(hand_overs: Sequence[dict[str, Any]]) -> Cells:
    rows = [
        (
            f"{row['size_bytes'] >> 10} KiB, `{row['way']}`",
            f"{row['median_us']:.1f}",
            f"{row['p10_us']:.1f} to {row['p90_us']:.1f}",
            f"{row['first_operation_us']:.1f}",
            f"{row['bytes_copied']:,}",
        )
        for row in hand_overs
    ]
    head = ("hand-over", "median, µs", "10% to 90%, µs", "to the first operation, µs", "bytes copied")
    return Cells(head, tuple(rows))


def _command() -> command.Command:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    add = parser.add_argument
    add("--budget-s", type=float, default=1.0, help="seconds for each size of hand-over (%(default)s)")
    add("--sizes", type=int, nargs="+", default=SIZES, help="bytes of each hand-over")
    return command.Command(
        parser,
        script="scripts/compare_zero_copy.sh",
        series="zero-copy",
        output_dir="results/zero_copy",
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
