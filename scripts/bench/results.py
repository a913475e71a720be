"""Everything that one comparison found, as it is written to and read from `results.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.bench.groups import Group, group_runs, ratios
from scripts.bench.records import RunRecord

__all__ = ["CopyCost", "Results", "load", "merge"]

_FORMAT = 1


@dataclass(frozen=True)
class CopyCost:
    """What handing the weights to validation costs the training thread at one epoch's end.

    Attributes:
        workload: which network.
        workers: validation workers.
        copy_s: seconds for one model copy each, as in paper P1.
        snapshot_s: seconds for our snapshot, shared by all.
    """

    workload: str
    workers: int
    copy_s: float
    snapshot_s: float


@dataclass(frozen=True)
class Results:
    """One comparison.

    Attributes:
        machine: of `machine.describe`.
        settings: the command line's values that explain the figures.
        sources: for each workload, the line that says which data it was.
        runs: all runs, in the order in which they ran.
        copy_costs: for 6 to 48 workers, where measured.
        notes: what was left out and why.
    """

    machine: dict[str, Any]
    settings: dict[str, Any]
    sources: dict[str, str]
    runs: tuple[RunRecord, ...] = ()
    copy_costs: tuple[CopyCost, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> list[Group]:
        """The runs as the tables show them."""
        return group_runs(self.runs)

    def save(self, path: Path) -> None:
        """Writes `results.json`, whole or not at all."""
        content = {
            "format": _FORMAT,
            "machine": self.machine,
            "settings": self.settings,
            "sources": self.sources,
            "notes": list(self.notes),
            "runs": [run.to_json() for run in self.runs],
            "ratios": [ratio.to_json() for group in self.groups for ratio in ratios(group)],
            "copy_costs": [vars(cost) for cost in self.copy_costs],
        }
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(content, indent=1))
        os.replace(unfinished, path)


def load(path: Path) -> Results:
    """Reads `results.json`.

    Raises:
        ValueError: the file is of another kind.
    """
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"{path} is no results.json of format {_FORMAT}")
    return Results(
        content["machine"],
        content["settings"],
        content["sources"],
        tuple(RunRecord.from_json(run) for run in content["runs"]),
        tuple(CopyCost(**cost) for cost in content["copy_costs"]),
        tuple(content["notes"]),
    )


def merge(parts: Sequence[Results]) -> Results:
    """Returns several comparisons of one machine as one; their repeats are counted on.

    Raises:
        ValueError: there is none, they ran on different machines, or timed other things.
    """
    if not parts:
        raise ValueError("there are no results to merge")
    first = parts[0]
    runs: list[RunRecord] = []
    sources: dict[str, str] = {}
    costs: dict[tuple[str, int], CopyCost] = {}
    notes: dict[str, None] = {}
    for part in parts:
        for what in ("cpu", "cores"):
            if part.machine[what] != first.machine[what]:
                raise ValueError(
                    f"results of different machines: {first.machine[what]}, {part.machine[what]}"
                )
        if part.settings["quick"] != first.settings["quick"]:
            raise ValueError("results of --quick and of full size do not belong into one table")
        if part.settings.get("whole", False) != first.settings.get("whole", False):
            raise ValueError("results of --whole and without the first epoch do not belong into one table")
        offset = 1 + max((run.repeat for run in runs), default=-1)
        runs += [replace(run, repeat=run.repeat + offset) for run in part.runs]
        sources.update(part.sources)
        costs.update({(cost.workload, cost.workers): cost for cost in part.copy_costs})
        notes.update(dict.fromkeys(part.notes))
    return replace(
        first, sources=sources, runs=tuple(runs), copy_costs=tuple(costs.values()), notes=tuple(notes)
    )
