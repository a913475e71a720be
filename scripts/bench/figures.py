"""From the runs of a comparison to its tables: medians, spreads, ratios, and who was as accurate.

Ratios come in two kinds. The *paired* one compares runs of the same repeat, which lay close together in
time, and takes the median of those quotients; it is what to believe on a machine whose speed drifts. The
one *to the fastest* sets our median run against the baseline's best run; it is the harder one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scripts.bench.publish import Cells
from scripts.bench.systems import BASELINES, SYSTEMS

# Points of accuracy by which a system may be away from the first of `_REFERENCES` that ran.
_TOLERANCE = 0.005
_REFERENCES = ("keras-numpy", "keras-tfdata", "keras-tfdata-tuned", "overlap-sync", "overlap")
# The overlapped system is also measured against the synchronous one: what overlapping alone gains.
_DIVISORS = (*BASELINES, "overlap-sync")
_NONE = "-"


@dataclass(frozen=True)
class Run:
    """What one run came to: the timed epochs of a system on a workload."""

    workload: str
    system: str
    threads: int | None  # None for a system that knows none
    repeat: int
    epochs: int
    wall_s: float = 0.0  # of all timed epochs, validation included
    cpu_s: float = 0.0  # of the process, user and system, in that time
    val_loss: float | None = None
    val_accuracy: float | None = None
    hidden_s: float | None = None  # validation that ran while training did; None where that is not known
    peak_rss_bytes: int = 0  # of the whole process, its start included
    notes: tuple[str, ...] = ()  # how it went about it, where the system says so
    error: str | None = None  # why there are no figures

    @property
    def epoch_s(self) -> float:
        """Seconds an epoch."""
        return self.wall_s / self.epochs

    def to_json(self) -> dict[str, Any]:
        """Returns the run as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        """Returns the run that `to_json` wrote."""
        return cls(**{**values, "notes": tuple(values["notes"])})


@dataclass(frozen=True)
class Group:
    """The runs of one table: one workload, one number of threads, and systems that know no threads."""

    workload: str
    threads: int | None
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        """What the table is headed with."""
        if self.threads is None:
            return self.workload
        return f"{self.workload}, {self.threads} thread{'s' * (self.threads != 1)}"

    @property
    def systems(self) -> list[str]:
        """The systems that ran, in the order of the registry."""
        ran = {run.system for run in self.runs}
        return [name for name in SYSTEMS if name in ran]

    def of(self, system: str) -> list[Run]:
        """Returns the runs of one system that gave figures, by repeat."""
        found = [run for run in self.runs if run.system == system and run.error is None]
        return sorted(found, key=lambda run: run.repeat)


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Returns one group for each workload and number of threads, in order of appearance."""
    runs = list(runs)
    groups = []
    for workload in dict.fromkeys(run.workload for run in runs):
        chosen = [run for run in runs if run.workload == workload]
        counts: list[int | None] = [*sorted({run.threads for run in chosen if run.threads is not None})]
        for threads in counts or [None]:
            members = tuple(run for run in chosen if run.threads in (threads, None))
            groups.append(Group(workload, threads, members))
    return groups


def ratio(group: Group, system: str, baseline: str) -> tuple[float, float] | None:
    """Returns the paired ratio of a system's time to a baseline's and the one to its fastest run."""
    paired = _pairs(group, system, baseline)
    if not paired:
        return None
    fastest_s = min(run.epoch_s for run in group.of(baseline))
    return statistics.median(paired), statistics.median(run.epoch_s for run in group.of(system)) / fastest_s


def verdict(group: Group, *, cores: int, others: float | None = None) -> str | None:
    """Returns what the runs say of `overlap`, in a few sentences; None if it or a baseline is missing.

    A system is faster if it was so in each pair of neighbouring runs. `others` are the cores that other
    programs used on average.
    """
    baselines = [name for name in BASELINES if name.startswith("keras") and group.of(name)]
    if not group.of("overlap") or not baselines:
        return None
    best = min(baselines, key=lambda name: statistics.median(run.epoch_s for run in group.of(name)))
    than_keras = _pairs(group, "overlap", best)
    words = {
        -1: f"faster than Keras: an epoch takes {_share(than_keras)} of the time of {best}",
        0: f"no difference from Keras that these runs show: {_share(than_keras)} of the time of {best}",
        1: f"slower than Keras: an epoch takes {_share(than_keras)} times as long as with {best}",
    }
    said = [f"{group.title}: {words[_sign(than_keras)]}"]
    if in_step := _pairs(group, "overlap", "overlap-sync"):
        busy = statistics.median(run.cpu_s / run.wall_s for run in group.of("overlap-sync"))
        idle = cores - busy
        gain = "Overlapping gained" if _sign(in_step) < 0 else "Overlapping gained nothing here"
        cause = f"which kept {busy:.1f} of {cores} cores busy" + (
            ", so little was idle" if idle < 0.5 else ""
        )
        said.append(f"{gain}: {_share(in_step)} of the time of the same trainer in step, {cause}")
    if others is not None and others > 0.5:
        said.append(f"Other programs used {others:.1f} cores meanwhile: repeat this on a machine at rest")
    return ". ".join(said)


def _pairs(group: Group, system: str, baseline: str) -> list[float]:
    """Returns the time of a system ÷ that of a baseline in each repeat."""
    theirs = {run.repeat: run.epoch_s for run in group.of(baseline)}
    return [run.epoch_s / theirs[run.repeat] for run in group.of(system) if run.repeat in theirs]


def _sign(ratios: list[float]) -> int:
    """Returns -1 if all ratios are below 1, 1 if all are above, otherwise 0."""
    return -(max(ratios, default=1) < 1) + (min(ratios, default=1) > 1)


def _share(ratios: list[float]) -> str:
    spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.2f}{spread}" if ratios else "an unknown share"


def second_cells(group: Group, *, cores: int) -> Cells:
    """Returns one row for each system: seconds for one epoch with its validation, memory and accuracy."""
    reference = next(
        filter(None, (_median(group, n, lambda run: run.val_accuracy) for n in _REFERENCES)), None
    )
    head = ("system", "s/epoch", "spread", "CPU s", "cores busy", "floor s", "hidden s", "peak RSS")
    body = tuple(_second_row(group, system, cores, reference) for system in group.systems)
    return Cells((*head, "val_loss", "val_acc", "runs"), body)


def ratio_cells(group: Group) -> Cells:
    """Returns a row for each system, a column for each baseline: paired ratio, and that to the fastest."""
    found = {(s, b): ratio(group, s, b) for s in group.systems for b in _DIVISORS if s != b}
    baselines = [name for name in SYSTEMS if any(found.get((system, name)) for system in group.systems)]
    rows = [s for s in group.systems if any(found.get((s, baseline)) for baseline in baselines)]
    body = tuple((s, *(_ratio_text(found.get((s, baseline))) for baseline in baselines)) for s in rows)
    return Cells(("time ÷ that of", *baselines), body)


def _second_row(group: Group, system: str, cores: int, reference: float | None) -> tuple[str, ...]:
    good = group.of(system)
    errors = [run.error for run in group.runs if run.system == system and run.error is not None]
    if not good:
        return (system, f"failed: {errors[0]}", *[_NONE] * 9)
    seconds = [run.epoch_s for run in good]
    cpu_s = statistics.median(run.cpu_s / run.epochs for run in good)
    busy = statistics.median(run.cpu_s / run.wall_s for run in good)
    loss, accuracy = (
        _median(group, system, lambda run, n=n: getattr(run, n)) for n in ("val_loss", "val_accuracy")
    )
    hidden_s = _median(group, system, lambda run: None if run.hidden_s is None else run.hidden_s / run.epochs)
    differs = accuracy is not None and reference is not None and abs(accuracy - reference) > _TOLERANCE
    return (
        system,
        f"{statistics.median(seconds):.2f}",
        f"{min(seconds):.2f} to {max(seconds):.2f}",
        f"{cpu_s:.2f}",
        f"{busy:.2f}",
        f"{cpu_s / cores:.2f}",
        _NONE if hidden_s is None else f"{hidden_s:.2f}",
        f"{statistics.median(run.peak_rss_bytes for run in good) / 2**20:,.0f} MiB",
        _NONE if loss is None else f"{loss:.4f}",
        (_NONE if accuracy is None else f"{accuracy:.2%}") + " differs!" * differs,
        f"{len(good)}" + (f" of {len(good) + len(errors)}" if errors else ""),
    )


def _median(group: Group, system: str, figure: Any) -> float | None:
    known = [value for run in group.of(system) if (value := figure(run)) is not None]
    return statistics.median(known) if known else None


def _ratio_text(found: tuple[float, float] | None) -> str:
    return _NONE if found is None else f"{found[0]:.2f} ({found[1]:.2f})"


def tables(groups: list[Group], *, cores: int) -> Iterator[tuple[str, Cells]]:
    """Yields all tables of a comparison with their headings."""
    for group in groups:
        yield f"{group.title}: seconds", second_cells(group, cores=cores)
        ratios = ratio_cells(group)
        if ratios.body:
            yield f"{group.title}: time ÷ a baseline's", ratios
