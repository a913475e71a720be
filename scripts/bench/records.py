"""What the processes of a comparison hand each other, and what `results.json` holds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

__all__ = ["LoadSample", "RunRecord", "RunSpec"]

# A sample with less of a core, or of a GPU, is of a process that waits and does not work.
_IDLE_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run: a system on a workload, in a process of its own.

    Attributes:
        workload: a name of `workloads.WORKLOADS`.
        system: a name of `systems.SYSTEMS`.
        threads: validation workers or `num_parallel_calls`; None for a system that knows neither.
        repeat: which repetition, from 0; also the seed of weights and order.
        epochs: how many are timed, after one that is not.
        quick: whether the workload is shrunk to its quick size.
        cache_dir: where prepared data lies between runs.
        whole: whether the first epoch and all that comes before it, but for the imports, is timed too.
    """

    workload: str
    system: str
    threads: int | None
    repeat: int
    epochs: int
    quick: bool
    cache_dir: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The load that a run put on the machine, seen from outside it.

    Attributes:
        time_s: seconds since the timed epochs began.
        cpu_percent: 100 is one core.
        gpu_percent: of each GPU.
    """

    time_s: float
    cpu_percent: float
    gpu_percent: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one run came to.

    Attributes:
        workload: as in its `RunSpec`; so are `system`, `threads`, `repeat` and `epochs`.
        wall_s: seconds for all timed epochs, validation included.
        cpu_s: CPU seconds of the process, user and system, in that time.
        val_loss: at the end of the last epoch.
        val_accuracy: likewise, 0 to 1.
        hidden_s: validation that ran while training did, all epochs; None where that is not known.
        copy_s: training thread's time for model copies or snapshots, all epochs; None likewise.
        peak_rss_bytes: largest resident memory of the whole process, its start included.
        notes: how it went about it, where the system says so: its plan, the algorithms that it chose.
        load: samples of the load over the timed epochs.
        error: why there are no figures, or None.
    """

    workload: str
    system: str
    threads: int | None
    repeat: int
    epochs: int
    wall_s: float = 0.0
    cpu_s: float = 0.0
    val_loss: float | None = None
    val_accuracy: float | None = None
    hidden_s: float | None = None
    copy_s: float | None = None
    peak_rss_bytes: int = 0
    notes: tuple[str, ...] = ()
    load: tuple[LoadSample, ...] = ()
    error: str | None = None

    @property
    def epoch_s(self) -> float:
        """Seconds an epoch."""
        return self.wall_s / self.epochs

    @property
    def idle_s(self) -> float:
        """Seconds of all timed epochs in which nothing ran, by the samples of the load."""
        return sum(
            later.time_s - earlier.time_s
            for earlier, later in itertools.pairwise(self.load)
            if max(later.cpu_percent, *later.gpu_percent, 0.0) < _IDLE_PERCENT
        )

    @property
    def active_epoch_s(self) -> float:
        """Seconds an epoch without those in which nothing ran."""
        idle_s = self.idle_s
        return (self.wall_s - idle_s if idle_s < self.wall_s else self.wall_s) / self.epochs

    @property
    def cores_busy(self) -> float:
        """Cores that were busy on average."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0

    @classmethod
    def failed(cls, spec: RunSpec, error: str) -> RunRecord:
        """Returns the record of a run that came to nothing."""
        return cls(spec.workload, spec.system, spec.threads, spec.repeat, spec.epochs, error=error)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunRecord:
        """Returns the record that `to_json` wrote; fields unknown here are left out."""
        known = {field.name for field in fields(cls)}
        record = cls(**{name: value for name, value in values.items() if name in known})
        load = [(row[0], row[1], tuple(row[2:])) for row in values.get("load", ())]
        return replace(record, notes=tuple(record.notes), load=tuple(LoadSample(*row) for row in load))

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values; the load as rows of time, CPU and each GPU."""
        values = asdict(self)
        values["load"] = [
            [round(s.time_s, 2), round(s.cpu_percent, 1), *(round(g, 1) for g in s.gpu_percent)]
            for s in self.load
        ]
        return values
