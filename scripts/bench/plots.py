"""Pictures of a comparison, after the figures of paper P1. Drawn without a display, from any thread."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.bench.groups import Group, rows
from scripts.bench.results import Results
from scripts.bench.table import PAPER_COPY_SHARES, epoch_seconds

__all__ = ["COLOURS", "plot_copies", "plot_epochs", "plot_load", "save", "save_plots"]

# Okabe and Ito's colours, which stay apart for colour-blind readers; ours in blue, baselines in warm tones.
COLOURS = {
    "keras-numpy": "#999999",
    "keras-tfdata": "#E69F00",
    "keras-tfdata-tuned": "#B8770A",
    "paper": "#CC79A7",
    "overlap": "#0072B2",
    "overlap-accelerated": "#004C78",
    "overlap-always": "#3C5A99",
    "overlap-keras-kernels": "#2F8FC4",
    "overlap-sync": "#56B4E9",
    "overlap-unhelped": "#6C8EBF",
    "train-only": "#8FCBE8",
}
_OTHER_COLOUR = "#009E73"
_INK, _FAINT = "#222222", "#D9D9D9"
_COLUMNS = 2
# What is white, black or faint on paper, in the dark; matplotlib writes colours into each shape's style.
_DARK = """@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 !important }
  [style*="fill: #ffffff"] { fill: #11161d !important }
  [style*="stroke: #000000"], [style*="stroke: #222222"] { stroke: #c9d1d9 !important }
  [style*="fill: #222222"] { fill: #c9d1d9 !important }
  [style*="stroke: #d9d9d9"] { stroke: #444c56 !important }
}"""


def save_plots(results: Results, folder: Path, *, kind: str = "png") -> dict[str, Path]:
    """Draws every picture that the results allow; returns the files by title, in reading order.

    Args:
        results: what to draw.
        folder: for the files; made if need be.
        kind: "png", or "svg", which is the same each time and holds its words as text.
    """
    figures: dict[str, tuple[str, Figure]] = {}
    groups = [group for group in results.groups if any(run.error is None for run in group.runs)]
    if groups:
        figures["Time of an epoch, with its validation"] = ("epochs", plot_epochs(groups))
    if any(cost.snapshot_s or cost.copy_s for cost in results.copy_costs):
        figures["Handing the weights to validation"] = ("copies", plot_copies(results))
    for group in groups:
        if any(run.load for run in group.runs):
            name = f"load-{group.workload}-{group.threads or 0}"
            figures[f"Load over time: {group.title}"] = (name, plot_load(group, results.machine["cores"]))
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for title, (name, figure) in figures.items():
        paths[title] = folder / f"{name}.{kind}"
        save(figure, paths[title])
    return paths


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG or SVG, by the file's name; an SVG has no date and no chance in it.

    An SVG follows the reader's choice of light or dark, as the drawn pictures of the documentation do.
    """
    vector = path.suffix == ".svg"
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        metadata = {"Date": None} if vector else None
        figure.savefig(path, dpi=144, bbox_inches="tight", facecolor="white", metadata=metadata)
    if vector:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("<defs>", f"<style>{_DARK}</style>\n<defs>", 1), encoding="utf-8")


def plot_epochs(groups: list[Group]) -> Figure:
    """Bars of the median epoch of each system, a dot for each run; one panel for each group."""
    columns = min(_COLUMNS, len(groups))
    panel_rows = math.ceil(len(groups) / columns)
    tallest = max(len(group.systems) for group in groups)
    figure = Figure((5.6 * columns, panel_rows * (0.34 * tallest + 0.9)), layout="constrained")
    for index, group in enumerate(groups):
        axes = figure.add_subplot(panel_rows, columns, index + 1)
        _draw_bars(axes, group)
    return figure


def plot_load(group: Group, cores: int) -> Figure:
    """Cores busy over the timed epochs, seen from outside; one panel for each system, its last run."""
    systems = [system for system in group.systems if any(run.load for run in group.of(system))]
    figure = Figure((9.0, 0.95 * len(systems) + 0.5), layout="constrained")
    panels = figure.subplots(len(systems), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, system in zip(panels, systems, strict=True):
        run = next(run for run in reversed(group.of(system)) if run.load)
        times_s = [sample.time_s for sample in run.load]
        busy = [sample.cpu_percent / 100 for sample in run.load]
        colour = COLOURS.get(system, _OTHER_COLOUR)
        axes.fill_between(times_s, busy, color=colour, alpha=0.35, linewidth=0)
        axes.plot(times_s, busy, color=colour, linewidth=1.2)
        for gpu in range(len(run.load[0].gpu_percent)):
            percent = [sample.gpu_percent[gpu] / 100 * cores for sample in run.load]
            axes.plot(times_s, percent, color=_INK, linewidth=0.9, linestyle=":", label=f"GPU {gpu}")
        mean = run.cores_busy
        axes.set_title(f"{system}   {mean:.2f} cores busy, {run.wall_s:.1f} s", fontsize=9, loc="left", pad=2)
        _tidy(axes)
        axes.axhline(cores, color=_FAINT, linewidth=0.8, zorder=0)
    panels[0].set_ylim(0, cores * 1.12)
    panels[0].set_xlim(left=0)
    panels[-1].set_xlabel("seconds since the timed epochs began", fontsize=9)
    figure.supylabel("cores busy" + (" (dotted: GPU, of all)" if _has_gpu(group) else ""), fontsize=9)
    return figure


def plot_copies(results: Results) -> Figure:
    """The training thread's time for model copies and for a snapshot, as a share of the epoch."""
    figure = Figure((9.0, 3.4), layout="constrained")
    axes = figure.subplots()
    for workload in dict.fromkeys(cost.workload for cost in results.copy_costs):
        costs = [cost for cost in results.copy_costs if cost.workload == workload]
        paper_s, ours_s = epoch_seconds(results, workload)
        workers = [cost.workers for cost in costs]
        if paper_s:
            shares = [100 * cost.copy_s / paper_s for cost in costs]
            _draw_shares(axes, workers, shares, COLOURS["paper"], f"a copy for each worker, {workload}")
        if ours_s:
            shares = [100 * cost.snapshot_s / ours_s for cost in costs]
            _draw_shares(axes, workers, shares, COLOURS["overlap"], f"our snapshot, {workload}")
    claimed = [100 * share for share in PAPER_COPY_SHARES.values()]
    axes.plot(
        list(PAPER_COPY_SHARES),
        claimed,
        "o",
        color=COLOURS["paper"],
        markerfacecolor="white",
        label="paper P1's own figure, measured elsewhere",
    )
    axes.axhline(0.05, color=_INK, linewidth=0.8, linestyle="--")
    axes.annotate("our bound, 0.05%", (1.0, 0.05), xycoords=("axes fraction", "data"), fontsize=8,
                  xytext=(-2, 3), textcoords="offset points", ha="right")  # fmt: skip
    axes.set_yscale("log")
    axes.margins(x=0.08, y=0.12)
    axes.set_xticks([cost.workers for cost in results.copy_costs])
    axes.set_xlabel("validation workers", fontsize=9)
    axes.set_ylabel("% of an epoch (log scale)", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _tidy(axes)
    return figure


def _draw_bars(axes: Axes, group: Group) -> None:
    drawn = [row for row in rows(group, cores=1) if row.runs]
    for place, row in enumerate(drawn):
        axes.barh(place, row.epoch_s, height=0.62, color=COLOURS.get(row.system, _OTHER_COLOUR))
        times_s = [run.epoch_s for run in group.of(row.system)]
        axes.plot(times_s, [place] * len(times_s), "o", color=_INK, markersize=2.6, alpha=0.75)
        end_s = max(row.epoch_s, row.slowest_s)
        axes.annotate(
            f"{row.epoch_s:.2f} s",
            (end_s, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(drawn)), [row.system for row in drawn], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max((row.slowest_s for row in drawn), default=1.0))
    axes.set_title(group.title, fontsize=10, loc="left")
    axes.set_xlabel("seconds an epoch: median, each run a dot", fontsize=8)
    _tidy(axes)
    axes.tick_params(axis="y", length=0)


def _draw_shares(axes: Axes, workers: list[int], shares: list[float], colour: str, label: str) -> None:
    axes.plot(workers, shares, "o-", color=colour, linewidth=1.6, markersize=4.5, label=label)
    for x, share in zip(workers, shares, strict=True):
        axes.annotate(f"{share:.2g}", (x, share), (0, 5), textcoords="offset points", ha="center", fontsize=7)


def _tidy(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.tick_params(colors=_INK, labelsize=8, color=_FAINT)


def _has_gpu(group: Group) -> bool:
    return any(run.load and run.load[0].gpu_percent for run in group.runs)
