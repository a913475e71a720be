"""The dated page of a comparison of systems: what docs/results shows of `results.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from scripts.bench import plots
from scripts.bench.publish import Finding
from scripts.bench.results import Results
from scripts.bench.systems import SYSTEMS
from scripts.bench.table import PAPER_MACHINE, Cells, claim_cells, copy_cells, group_cells, ratio_cells

__all__ = ["finding"]

_WORDS = """\
Whole epochs with their validation, {timed}. Each run is a process of its own.
All systems take turns, and another one begins in each repeat. Seconds are for one epoch: the
median, then the fastest and the slowest run. *Floor* is the CPU seconds spread evenly over all cores,
*idle* the time in which nothing ran, *hidden* the validation that ran during training."""
_RATIOS = """\
Ratios are medians of paired runs; below 1 is faster. In brackets: our median ÷ the baseline's fastest run. In
square brackets, where it differs: the paired ratio without the time in which nothing ran."""


def finding(found: Results, *, series: str, command: str, folder: Path) -> Finding:
    """Returns the page of a comparison.

    Args:
        found: its results.
        series: the name of its pages.
        command: as it was typed.
        folder: where its pictures are drawn.

    Raises:
        ValueError: a run failed, or the sizes were those of --quick.
    """
    if found.settings["quick"]:
        raise ValueError("--quick shows that all works; its figures are not published")
    if failed := [f"{run.workload}, {run.system}: {run.error}" for run in found.runs if run.error]:
        raise ValueError(f"{len(failed)} runs failed and nothing is published; the first: {failed[0]}")
    whole = found.settings.get("whole")
    timed = "the first one too, and all before it but the imports" if whole else "after one that is not timed"
    workloads = ", ".join(dict.fromkeys(run.workload for run in found.runs))
    return Finding(
        series=series,
        question=f"How long does an epoch take with its validation: {workloads}?",
        title=f"An epoch with its validation: {workloads}",
        words="\n\n".join([_WORDS.format(timed=timed), _RATIOS, *_lines(found)]),
        command=command,
        tables=list(_tables(found)),
        pictures=plots.save_plots(found, folder, kind="svg"),
        data=json.loads(json.dumps(found.content())),
    )


def _tables(found: Results) -> Iterator[tuple[str, Cells]]:
    claims = claim_cells(found)
    if claims.body:
        yield f"What paper P1 reports ({PAPER_MACHINE}), and what was measured here", claims
    for group in found.groups:
        yield f"{group.title}: seconds", group_cells(group, cores=found.machine["cores"])
        ratios = ratio_cells(group)
        if ratios.body:
            yield f"{group.title}: time ÷ a baseline's", ratios
    if found.copy_costs:
        yield "Handing the weights to validation", copy_cells(found)


def _lines(found: Results) -> Iterator[str]:
    """Yields what the rows of the tables are, which data it was, and what was left out."""
    ran = [name for name in SYSTEMS if any(run.system == name for run in found.runs)]
    yield "\n".join(
        ["| system | what it is |", "|---|---|", *(f"| `{n}` | {SYSTEMS[n].title} |" for n in ran)]
    )
    yield "\n".join(f"- `{workload}`: {source}" for workload, source in found.sources.items())
    if found.notes:
        yield "\n".join(f"- {note}" for note in found.notes)
