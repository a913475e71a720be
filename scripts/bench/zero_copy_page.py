"""What the zero-copy comparison shows: its report, and the dated page of docs/results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.bench.publish import Finding
from scripts.bench.table import Cells
from scripts.bench.zero_copy_handover import HandOver
from scripts.bench.zero_copy_training import TrainingRun

__all__ = ["finding", "report"]

_WORDS = """\
From a NumPy array to the first TensorFlow operation that reads it, and one epoch from a memory-mapped
array. Hand-overs alternate in rounds; their times are medians. Each epoch is a process of its own, and
all ways see the same data in the same order. The peak is of the whole process; what it held before the
data is next to it."""


def finding(results: dict[str, Any], *, series: str, command: str, folder: Path) -> Finding:
    """Returns the page; its pictures lie in a folder."""
    pictures = {"The hand-over, by the size of the array": folder / "hand_over.svg"}
    if results["training"]:
        pictures["One epoch: time and peak memory"] = folder / "training.svg"
    return Finding(
        series=series,
        question="What does a hand-over cost, and what does an epoch hold in memory?",
        title="Zero-copy input",
        words=_WORDS,
        command=command,
        tables=list(_tables(results)),
        pictures=pictures,
        data=json.loads(json.dumps(results)),
    )


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
    if "unavailable" not in results["gpu"]:
        figures = tuple((name, str(value)) for name, value in results["gpu"].items())
        yield "On a GPU: mapped memory next to a pinned copy", Cells(("what", "figure"), figures)


def _epochs(runs: Sequence[dict[str, Any]]) -> Cells:
    """Returns a row for each way, with all its runs."""
    head = (
        "way",
        "seconds of each run",
        "median",
        "peak memory, MiB",
        "of it before the data, MiB",
        "last loss",
    )
    rows = []
    for way in dict.fromkeys(run["way"] for run in runs):
        own = [run for run in runs if run["way"] == way]
        seconds = [run["seconds"] for run in own]
        rows.append(
            (
                f"`{way}`",
                " ".join(f"{each:.1f}" for each in seconds),
                f"{statistics.median(seconds):.1f}",
                f"{max(run['peak_rss_bytes'] for run in own) >> 20:,}",
                f"{max(run['start_rss_bytes'] for run in own) >> 20:,}",
                " ".join(dict.fromkeys(f"{run['loss']:.4f}" for run in own)),
            )
        )
    return Cells(head, tuple(rows))


def report(results: dict[str, Any], hand_overs: Sequence[HandOver], training: Sequence[TrainingRun]) -> str:
    """Returns what is printed and written next to the plots, in Markdown."""
    machine = results["machine"]
    lines = [
        f"# Zero-copy, measured {machine['date']} on {machine['cores']} cores of {machine['cpu']}",
        "",
        "| size, KiB | way | median, µs | 10% to 90%, µs | to the first operation, µs | bytes copied |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {entry.size_bytes >> 10} | {entry.way} | {entry.median_us:.1f} "
        f"| {entry.p10_us:.1f} to {entry.p90_us:.1f} | {entry.first_operation_us:.1f} "
        f"| {entry.bytes_copied} |"
        for entry in hand_overs
    ]
    if training:
        lines += ["", f"One epoch from {training[0].data_bytes / (1 << 30):.2f} GiB of synthetic images:", ""]
        lines += [
            "| way | seconds | peak RSS, MiB | of it before the data | last loss |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {run.way} | {run.seconds:.1f} | {run.peak_rss_bytes >> 20} | {run.start_rss_bytes >> 20} "
            f"| {run.loss:.4f} |"
            for run in training
        ]
    if results["training_unavailable"]:
        lines += ["", f"No epoch was trained: {results['training_unavailable']}"]
    lines += ["", "Ratios:", ""] + [f"- {name}: {value:.3g}" for name, value in results["summary"].items()]
    gpu = results["gpu"]
    lines += ["", f"GPU: {gpu.get('unavailable') or json.dumps(gpu)}"]
    elsewhere = results["measured_elsewhere"]
    lines += [
        "",
        f"Measured elsewhere, {elsewhere['source']}, {elsewhere['machine']}: "
        "pinned copy 0.46 s and 0.58 mWh, mapped 0.41 s and 0.37 mWh.",
    ]
    return "\n".join(lines) + "\n"
