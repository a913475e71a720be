"""The picture of the convolution comparison: ratios of every layer, drawn from its JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from scripts.bench.plots import save

__all__ = ["plot_ratios"]

_DIRECTIONS = ("forward", "input_gradient", "filter_gradient")
_CONTESTANTS = ("winograd", "direct", "auto")


def plot_ratios(name: str, found: dict[str, Any], folder: Path) -> Path:
    """Draws one network at one batch size as `folder/name.svg`; returns the file."""
    figure = Figure((10, 9), layout="constrained")
    panels = figure.subplots(len(_DIRECTIONS), 1, sharex=True)
    for axis, direction in zip(panels, _DIRECTIONS, strict=True):
        rows = [row for row in found["rows"] if row["direction"] == direction]
        places = range(len(rows))
        for offset, contestant in enumerate(_CONTESTANTS):
            heights = [row["ratio"].get(contestant) or 0.0 for row in rows]
            axis.bar([p + 0.27 * (offset - 1) for p in places], heights, 0.27, label=contestant)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_ylabel(f"{direction.replace('_', ' ')}\ntimes as fast as tf.nn")
        axis.set_xticks(places, [_label(row) for row in rows], fontsize=7)
    panels[0].legend(ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    save(figure, folder / f"{name}.svg")
    return folder / f"{name}.svg"


def _label(row: dict[str, Any]) -> str:
    return (
        f"{row['height']}×{row['width']}\n{row['inputs']}→{row['outputs']}\n{row['kernel']}/{row['stride']}"
    )
