"""Plots of the zero-copy comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from scripts.bench.plots import save
from scripts.bench.zero_copy_handover import HandOver
from scripts.bench.zero_copy_training import TrainingRun

__all__ = ["plot_hand_overs", "plot_training"]


def plot_hand_overs(hand_overs: Sequence[HandOver], path: Path) -> None:
    """Draws the time of a hand-over by its size, with the middle 80% of the measurements."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for way in dict.fromkeys(entry.way for entry in hand_overs):
        entries = [entry for entry in hand_overs if entry.way == way]
        sizes = [entry.size_bytes / 1024 for entry in entries]
        axes.plot(sizes, [entry.median_us for entry in entries], marker="o", label=way)
        low, high = [entry.p10_us for entry in entries], [entry.p90_us for entry in entries]
        axes.fill_between(sizes, low, high, alpha=0.2)
    axes.set(xscale="log", yscale="log", xlabel="array, KiB", ylabel="hand-over to TensorFlow, µs")
    axes.legend()
    axes.grid(alpha=0.3)
    _save(figure, path)


def plot_training(training: Sequence[TrainingRun], path: Path) -> None:
    """Draws time against peak memory, a dot for each run."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for way in dict.fromkeys(run.way for run in training):
        runs = [run for run in training if run.way == way]
        axes.scatter(
            [run.seconds for run in runs], [run.peak_rss_bytes / (1 << 30) for run in runs], label=way
        )
    axes.axhline(training[0].data_bytes / (1 << 30), color="grey", linestyle="--", label="size of the data")
    axes.set(xlabel="one epoch, s", ylabel="peak resident memory, GiB", xlim=(0, None), ylim=(0, None))
    # Beside the axes: a run may lie anywhere in them.
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.grid(alpha=0.3)
    _save(figure, path)


def _save(figure: matplotlib.figure.Figure, path: Path) -> None:
    save(figure, path)
    plt.close(figure)
