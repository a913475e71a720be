"""From the records of runs to the rows of the tables: medians, spreads, ratios, and who was as accurate.

Ratios come in two kinds. The *paired* one compares runs of the same repeat, which lay close together in
time, and takes the median of those quotients; it is what to believe on a machine whose speed drifts. The
one *to the fastest* sets our median run against the baseline's best run; it is the harder one. A baseline
may stand still for seconds, as tf.data does when its autotune thread ends; the *active* ratio leaves out, in
both, the time in which nothing ran.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scripts.bench.records import RunRecord
from scripts.bench.systems import BASELINES, SYSTEMS

__all__ = ["ACCURACY_TOLERANCE", "Group", "Ratio", "Row", "group_runs", "ratios", "rows"]

ACCURACY_TOLERANCE = 0.005
# The accuracy of the first of these that ran is the one that everybody must reach.
_REFERENCES = ("keras-numpy", "keras-tfdata", "keras-tfdata-tuned", "overlap-sync", "overlap")
# The overlapped system is also measured against the synchronous one: what overlapping alone gains.
_DIVISORS = (*BASELINES, "overlap-sync")


@dataclass(frozen=True)
class Row:
    """One system in one table; all seconds are for one epoch with its validation.

    Attributes:
        system: its name.
        runs: how many gave figures; if none did, all figures are 0 or None.
        epoch_s: median over the runs.
        fastest_s: of the fastest run.
        slowest_s: of the slowest run.
        cpu_s: CPU seconds, median.
        cores_busy: cores busy on average, median.
        floor_s: `cpu_s` spread evenly over all cores: no faster without less work.
        idle_s: in which nothing ran, median.
        peak_rss_bytes: median.
        hidden_s: validation that ran beside training, median; None if not known.
        val_loss: median at the last epoch.
        val_accuracy: likewise, 0 to 1.
        accuracy_agrees: within `ACCURACY_TOLERANCE` of the reference; None if there is none.
        errors: of the runs that failed.
    """

    system: str
    runs: int
    epoch_s: float = 0.0
    fastest_s: float = 0.0
    slowest_s: float = 0.0
    cpu_s: float = 0.0
    cores_busy: float = 0.0
    floor_s: float = 0.0
    idle_s: float = 0.0
    peak_rss_bytes: int = 0
    hidden_s: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None
    accuracy_agrees: bool | None = None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ratio:
    """One system's time divided by a baseline's, on one workload; below 1 is faster.

    Attributes:
        workload: which.
        threads: validation workers, or None if neither knows threads.
        system: the dividend.
        baseline: the divisor.
        paired: the quotient of each repeat in which both have figures.
        paired_median: their median.
        to_fastest: the system's median by the baseline's fastest run.
        paired_active: as `paired_median`, without the time in which nothing ran.
    """

    workload: str
    threads: int | None
    system: str
    baseline: str
    paired: tuple[float, ...]
    paired_median: float
    to_fastest: float
    paired_active: float

    def to_json(self) -> dict[str, Any]:
        """Returns the ratio as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Group:
    """The runs that belong into one table: one workload, one number of threads.

    Attributes:
        workload: which.
        threads: how many; None where no system that ran knows threads.
        runs: those with that number, and those of systems that know none.
    """

    workload: str
    threads: int | None
    runs: tuple[RunRecord, ...]

    @property
    def title(self) -> str:
        return self.workload if self.threads is None else f"{self.workload}, {_plural(self.threads)}"

    def of(self, system: str) -> list[RunRecord]:
        """Returns the runs of one system that gave figures, by repeat."""
        found = [run for run in self.runs if run.system == system and run.error is None]
        return sorted(found, key=lambda run: run.repeat)

    @property
    def systems(self) -> list[str]:
        """The systems that ran, in the order of the registry."""
        ran = {run.system for run in self.runs}
        return [name for name in SYSTEMS if name in ran]


def group_runs(runs: Iterable[RunRecord]) -> list[Group]:
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


def rows(group: Group, *, cores: int) -> list[Row]:
    """Returns one row for each system of a group."""
    reference = _reference_accuracy(group)
    return [_row(group, system, cores, reference) for system in group.systems]


def ratios(group: Group) -> list[Ratio]:
    """Returns the ratios of every system to every baseline, and of the overlapped to the synchronous one."""
    found = []
    for system in group.systems:
        for baseline in _DIVISORS:
            ratio = _ratio(group, system, baseline)
            if system != baseline and ratio is not None:
                found.append(ratio)
    return found


def _row(group: Group, system: str, cores: int, reference: float | None) -> Row:
    good = group.of(system)
    errors = tuple(run.error for run in group.runs if run.system == system and run.error is not None)
    if not good:
        return Row(system, 0, errors=errors)
    times_s = [run.epoch_s for run in good]
    cpu_s = statistics.median(run.cpu_s / run.epochs for run in good)
    accuracy = _median(run.val_accuracy for run in good)
    hidden_s = _median(None if run.hidden_s is None else run.hidden_s / run.epochs for run in good)
    agrees = None
    if accuracy is not None and reference is not None:
        agrees = abs(accuracy - reference) <= ACCURACY_TOLERANCE
    return Row(
        system,
        len(good),
        epoch_s=statistics.median(times_s),
        fastest_s=min(times_s),
        slowest_s=max(times_s),
        cpu_s=cpu_s,
        cores_busy=statistics.median(run.cores_busy for run in good),
        floor_s=cpu_s / cores,
        idle_s=statistics.median(run.idle_s / run.epochs for run in good),
        peak_rss_bytes=int(statistics.median(run.peak_rss_bytes for run in good)),
        hidden_s=hidden_s,
        val_loss=_median(run.val_loss for run in good),
        val_accuracy=accuracy,
        accuracy_agrees=agrees,
        errors=errors,
    )


def _ratio(group: Group, system: str, baseline: str) -> Ratio | None:
    ours, theirs = group.of(system), group.of(baseline)
    partner = {run.repeat: run for run in theirs}
    pairs = [(run, partner[run.repeat]) for run in ours if run.repeat in partner]
    if not pairs:
        return None
    paired = tuple(run.epoch_s / other.epoch_s for run, other in pairs)
    median_s = statistics.median(run.epoch_s for run in ours)
    to_fastest = median_s / min(run.epoch_s for run in theirs)
    return Ratio(
        group.workload,
        group.threads,
        system,
        baseline,
        paired,
        statistics.median(paired),
        to_fastest,
        statistics.median(run.active_epoch_s / other.active_epoch_s for run, other in pairs),
    )


def _reference_accuracy(group: Group) -> float | None:
    for name in _REFERENCES:
        accuracy = _median(run.val_accuracy for run in group.of(name))
        if accuracy is not None:
            return accuracy
    return None


def _median(values: Iterable[float | None]) -> float | None:
    known: Sequence[float] = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _plural(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
