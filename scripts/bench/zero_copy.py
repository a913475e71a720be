"""Zero-copy next to what a user would write without it.

    scripts/compare_zero_copy.sh --output_dir results/zero_copy

Two parts: the hand-over from NumPy to the first TensorFlow operation, 4 KiB to 64 MiB, and one epoch from a
memory-mapped array of 4 GiB. What a pinned copy costs on a GPU, `zero_copy.measure_crossover` tells.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import command
from scripts.bench.journal import Journal
from scripts.bench.publish import Cells, Finding
from scripts.bench.zero_copy_handover import SIZES, measure_hand_overs
from scripts.bench.zero_copy_training import WAYS, compare_training

__all__ = ["finding", "main", "summarize"]

_Row = dict[str, Any]
_BAR_BYTES = 16 << 20
_COMPARED = (
    ("zero_copy", "from_tensor_slices"),
    ("zero_copy", "from_tensor_slices_batched"),
    ("trainer", "keras_fit"),
)
_WORDS = """\
From a NumPy array to the first TensorFlow operation that reads it, and one epoch from a memory-mapped
array. Hand-overs alternate in rounds; their times are medians. Each epoch is a process of its own, and
all ways see the same data in the same order. The peak is of the whole process; what it held before the
data is next to it. Paper P3 measured elsewhere, on an NVIDIA Jetson TK1 whose CPU and GPU share their memory
(GoogLeNet, one image, 100 runs): 0.46 s and 0.58 mWh by a pinned copy, 0.41 s and 0.37 mWh mapped."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns 0, whatever it shows."""
    line = _command()
    options = line.parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reads it once, when it is imported
    with line.journal(options) as journal:
        hand_overs = [row for size in options.sizes for row in _hand_overs(size, options, journal)]
        training, why_not = _train(options, journal)
        results = {
            "hand_overs": hand_overs,
            "training": training,
            "training_unavailable": why_not,
            "summary": summarize(hand_overs, training),
        }
        (Path(options.output_dir) / "zero_copy.json").write_text(json.dumps(results, indent=1))
        line.show(finding(results), options, journal)
        if why_not:
            print(f"No epoch was measured: {why_not}")
    return 0


def finding(results: dict[str, Any]) -> Finding:
    """Returns the page."""
    return Finding(
        question="What does a hand-over cost, and what does an epoch hold in memory?",
        title="Zero-copy input",
        words=_WORDS,
        tables=list(_tables(results)),
        data=results,
    )


def _hand_overs(size: int, options: argparse.Namespace, journal: Journal) -> list[_Row]:
    work = functools.partial(measure_hand_overs, [size], budget_s=options.budget_s)
    found: list[_Row] = journal.once(f"hand-over/{size}", work)
    return found


def _train(options: argparse.Namespace, journal: Journal) -> tuple[list[_Row], str | None]:
    """Returns the runs, or why there are none."""
    if not options.data_gib:
        return [], "--data-gib is 0"

    def kept(key: str, train: Callable[[], _Row]) -> _Row:
        run: _Row = journal.once(f"training/{key}", train)
        return run

    data_bytes = int(options.data_gib * (1 << 30))
    try:
        runs = compare_training(
            data_bytes, repeats=options.repeats, ways=options.ways, folder=options.folder, kept=kept
        )
    except (MemoryError, OSError) as error:
        return [], str(error)
    return runs, None


def summarize(hand_overs: Sequence[_Row], training: Sequence[_Row]) -> dict[str, float]:
    """Returns the ratios that the claims rest on; those whose parts were not measured are left out."""
    summary: dict[str, float] = {}
    at = {(row["way"], row["size_bytes"]): row for row in hand_overs}
    shared = [row["median_us"] for row in hand_overs if row["way"] == "as_tensor"]
    if shared:
        summary["as_tensor_slowest_size_over_quickest"] = max(shared) / min(shared)
    if ("as_tensor", _BAR_BYTES) in at:
        ours, theirs = at["as_tensor", _BAR_BYTES], at["convert_to_tensor", _BAR_BYTES]
        summary["times_as_fast_at_16_mib"] = theirs["median_us"] / ours["median_us"]
        summary["times_as_fast_to_first_operation_at_16_mib"] = (
            theirs["first_operation_us"] / ours["first_operation_us"]
        )
    ways = {run["way"] for run in training}
    for way, baseline in _COMPARED:
        if {way, baseline} <= ways:
            for name, figure in (("peak_rss_of", "peak_rss_bytes"), ("time_of", "seconds")):
                ours_m, theirs_m = (_median(training, w, figure) for w in (way, baseline))
                summary[f"{name}_{way}_over_{baseline}"] = ours_m / theirs_m
    return summary


def _median(training: Sequence[_Row], way: str, figure: str) -> float:
    return statistics.median(run[figure] for run in training if run["way"] == way)


def _tables(results: dict[str, Any]) -> Iterator[tuple[str, Cells]]:
    rows = [
        (
            f"{row['size_bytes'] >> 10} KiB, `{row['way']}`",
            f"{row['median_us']:.1f}",
            f"{row['p10_us']:.1f} to {row['p90_us']:.1f}",
            f"{row['first_operation_us']:.1f}",
            f"{row['bytes_copied']:,}",
        )
        for row in results["hand_overs"]
    ]
    head = ("hand-over", "median, µs", "10% to 90%, µs", "to the first operation, µs", "bytes copied")
    yield "Hand-over", Cells(head, tuple(rows))
    if results["training"]:
        size = results["training"][0]["data_bytes"] / (1 << 30)
        yield f"One epoch from {size:.2f} GiB", _epochs(results["training"])
    ratios = tuple((name.replace("_", " "), f"{value:.3g}") for name, value in results["summary"].items())
    if ratios:
        yield "Ratios", Cells(("ratio", "figure"), ratios)


def _epochs(runs: Sequence[_Row]) -> Cells:
    """Returns a row for each way, with all its runs."""
    rows = []
    for way in dict.fromkeys(run["way"] for run in runs):
        own = [run for run in runs if run["way"] == way]
        rows.append(
            (
                f"`{way}`",
                " ".join(f"{run['seconds']:.1f}" for run in own),
                f"{_median(runs, way, 'seconds'):.1f}",
                f"{max(run['peak_rss_bytes'] for run in own) >> 20:,}",
                f"{max(run['start_rss_bytes'] for run in own) >> 20:,}",
                " ".join(dict.fromkeys(f"{run['loss']:.4f}" for run in own)),
            )
        )
    head = ("way", "seconds of each run", "median", "peak memory, MiB", "of it before the data, MiB")
    return Cells((*head, "last loss"), tuple(rows))


def _command() -> command.Command:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    add = parser.add_argument
    add("--data-gib", type=float, default=4.0, help="size of the mapped array; 0: none (%(default)s)")
    add("--repeats", type=int, default=3, help="epochs of each way (%(default)s)")
    add("--ways", nargs="+", default=WAYS, choices=WAYS, help="which ways to train (all)")
    add("--folder", help="where to put the mapped array (the system's temporary folder)")
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
