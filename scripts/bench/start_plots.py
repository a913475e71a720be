"""The picture of the comparison of whole calls: the ratio of every pair, drawn from its JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.bench.plots import COLOURS, save

__all__ = ["plot_ratios"]

_COLUMNS = 3


def plot_ratios(rows: Sequence[Mapping[str, Any]], calls: Sequence[str], path: Path) -> Path:
    """Draws a panel for each call: a dot for each pair, and a line at the median; returns the file.

    Args:
        rows: the pairs of each network, number of epochs and state of the caches.
        calls: to draw, such as "first".
        path: the file, an SVG or a PNG.
    """
    columns = min(_COLUMNS, len(calls))
    panel_rows = math.ceil(len(calls) / columns)
    figure = Figure((3.4 * columns + 1.4, panel_rows * (0.2 * len(rows) + 0.8)), layout="constrained")
    panels = figure.subplots(panel_rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, call in zip(panels, calls, strict=False):
        _draw(axes, rows, call)
    for axes in panels[len(calls) :]:
        axes.set_axis_off()
    panels[0].invert_yaxis()
    panels[0].set_xlim(0, 1.05 * max(max(_ratios(row, call)) for row in rows for call in calls))
    figure.supxlabel("our seconds ÷ Keras's, each pair a dot; left of 1 is faster", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)
    return path


def _draw(axes: Axes, rows: Sequence[Mapping[str, Any]], call: str) -> None:
    axes.axvline(1.0, color="#222222", linewidth=0.8)
    for place, row in enumerate(rows):
        ratios = _ratios(row, call)
        axes.plot(ratios, [place] * len(ratios), "o", color=COLOURS["overlap"], markersize=3, alpha=0.6)
        axes.plot([statistics.median(ratios)] * 2, [place - 0.35, place + 0.35], color=COLOURS["overlap"])
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=7)
    axes.set_title(call, fontsize=9, loc="left")
    axes.tick_params(labelsize=7)


def _ratios(row: Mapping[str, Any], call: str) -> list[float]:
    return [pair["ours"]["seconds"][call] / pair["keras"]["seconds"][call] for pair in row["pairs"]]


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['network']}, {row['epochs']} epochs, {row['caches']}"
