"""The tables of a comparison as cells of text; the terminal and the HTML report lay out the same cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.bench.groups import Group, Ratio, Row, ratios, rows
from scripts.bench.results import Results
from scripts.bench.systems import SYSTEMS

__all__ = [
    "PAPER_CLAIMS",
    "Cells",
    "claim_cells",
    "copy_cells",
    "group_cells",
    "layout",
    "markdown",
    "ratio_cells",
]

_NONE = "-"
# Paper P1's own figures: title, share of time saved, and what of ours stands beside it.
PAPER_CLAIMS = (
    ("MNIST, 1 thread, time saved against NumPy", 0.166, ("mnist", 1, "keras-numpy")),
    ("MNIST, 1 thread, time saved against tf.data", 0.116, ("mnist", 1, "keras-tfdata")),
    ("MNIST, 6 threads, time saved against tf.data", 0.108, ("mnist", 6, "keras-tfdata")),
    ("MNIST of 1 GB, most time saved against tf.data", 0.224, ("mnist-1gb", 6, "keras-tfdata")),
)
PAPER_MACHINE = "Core i5-9500, GTX 1650"
PAPER_COPY_SHARES = {6: 0.0001, 48: 0.0041}


@dataclass(frozen=True)
class Cells:
    """A table of text: `body` rows as wide as `head`; the first column is a name, the others figures."""

    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]


def group_cells(group: Group, *, cores: int) -> Cells:
    """Returns one row for each system: time, CPU, memory and accuracy."""
    head = ("system", "s/epoch", "spread", "CPU s", "cores busy", "floor s", "idle s", "hidden s")
    body = [_row_cells(row) for row in rows(group, cores=cores)]
    return Cells((*head, "peak RSS", "val_loss", "val_acc", "runs"), tuple(body))


def ratio_cells(group: Group) -> Cells:
    """Returns a row for each system, a column for each baseline: paired ratio, to the fastest, active."""
    found = ratios(group)
    baselines = [name for name in SYSTEMS if any(ratio.baseline == name for ratio in found)]
    by_pair = {(ratio.system, ratio.baseline): ratio for ratio in found}
    body = tuple(
        (system, *(_ratio_text(by_pair.get((system, baseline))) for baseline in baselines))
        for system in dict.fromkeys(ratio.system for ratio in found)
    )
    return Cells(("time ÷ that of", *baselines), body)


def copy_cells(results: Results) -> Cells:
    """Returns what model copies and snapshots cost, in milliseconds and as a share of an epoch."""
    body = []
    for cost in results.copy_costs:
        paper_s, ours_s = epoch_seconds(results, cost.workload)
        claimed = PAPER_COPY_SHARES.get(cost.workers)
        body.append(
            (
                f"{cost.workload}, {cost.workers} workers",
                f"{cost.copy_s * 1e3:.2f}",
                _share(cost.copy_s, paper_s),
                _NONE if claimed is None else f"{claimed:.2%}",
                f"{cost.snapshot_s * 1e3:.3f}",
                _share(cost.snapshot_s, ours_s),
            )
        )
    head = ("at an epoch's end", "copies ms", "of epoch", "P1's own figure", "snapshot ms", "of epoch")
    return Cells(head, tuple(body))


def claim_cells(results: Results) -> Cells:
    """Returns paper P1's claims of what was measured here, beside its scheme and ours."""
    body = []
    for title, claimed, (workload, threads, baseline) in PAPER_CLAIMS:
        group = next((g for g in results.groups if (g.workload, g.threads) == (workload, threads)), None)
        by_system = {} if group is None else {r.system: r for r in ratios(group) if r.baseline == baseline}
        ours = [by_system.get(system) for system in ("paper", "overlap")]
        shown = [_NONE if r is None else f"{1 - r.paired_median:.1%}" for r in ours]
        if any(ours):
            body.append((title, f"{claimed:.1%}", *shown))
    head = ("claim", f"P1, measured elsewhere ({PAPER_MACHINE})", "its scheme, here", "overlap, here")
    return Cells(head, tuple(body))


def layout(cells: Cells) -> str:
    """Returns the table as lines for a terminal, the first column to the left and the others to the right."""
    lines = [cells.head, *cells.body]
    widths = [max(len(line[column]) for line in lines) for column in range(len(cells.head))]
    return "\n".join(_aligned(line, widths) for line in (lines[0], ["─" * w for w in widths], *lines[1:]))


def markdown(cells: Cells) -> str:
    """Returns the table in Markdown, the first column to the left and the others to the right."""
    lines = [cells.head, ("---", *["---:"] * (len(cells.head) - 1)), *cells.body]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def epoch_seconds(results: Results, workload: str) -> tuple[float | None, float | None]:
    """Returns the median epoch of the paper's scheme and of ours, at the largest number of threads."""
    groups = [group for group in results.groups if group.workload == workload]
    if not groups:
        return None, None
    by_system = {row.system: row.epoch_s for row in rows(groups[-1], cores=1) if row.runs}
    return by_system.get("paper"), by_system.get("overlap")


def _row_cells(row: Row) -> tuple[str, ...]:
    if not row.runs:
        reason = row.errors[0] if row.errors else "no figures"
        return (row.system, f"failed: {reason}", *[_NONE] * 10)
    accuracy = _NONE if row.val_accuracy is None else f"{row.val_accuracy:.2%}"
    if row.accuracy_agrees is False:
        accuracy += " differs!"
    return (
        row.system,
        f"{row.epoch_s:.2f}",
        f"{row.fastest_s:.2f} to {row.slowest_s:.2f}",
        f"{row.cpu_s:.2f}",
        f"{row.cores_busy:.2f}",
        f"{row.floor_s:.2f}",
        f"{row.idle_s:.2f}",
        _NONE if row.hidden_s is None else f"{row.hidden_s:.2f}",
        f"{row.peak_rss_bytes / 2**20:,.0f} MiB",
        _NONE if row.val_loss is None else f"{row.val_loss:.4f}",
        accuracy,
        f"{row.runs}" + (f" of {row.runs + len(row.errors)}" if row.errors else ""),
    )


def _ratio_text(ratio: Ratio | None) -> str:
    if ratio is None:
        return _NONE
    text = f"{ratio.paired_median:.2f} ({ratio.to_fastest:.2f})"
    active = f"{ratio.paired_active:.2f}"
    return text if active == f"{ratio.paired_median:.2f}" else f"{text} [{active}]"


def _share(part_s: float, whole_s: float | None) -> str:
    return _NONE if not whole_s else f"{part_s / whole_s:.4%}"


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        line[0].ljust(widths[0]),
        *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)),
    ]
    return "  ".join(cells).rstrip()
