"""What a process holds, sampled in a soak, and whether it grows.

A sample is taken when everything has ended that should have: then memory, threads, descriptors, child
processes, files and shared memory have to be where they were. The judgement is a line through the later
two thirds of the samples (Theil and Sen's, which outliers do not turn) with its 95% interval.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
from scipy import stats

_SHARED = Path("/dev/shm")
_LEAST = 9
_WARM_UP = 1 / 3


@dataclass(frozen=True)
class Sample:
    """What a process held at one moment, since the soak began."""

    time_s: float
    uses: int  # pieces of work that had ended
    memory: int  # resident bytes, after the allocator gave back what it could
    objects: int  # that Python's collector tracks
    snapshots: int  # of weights, still alive
    threads: int
    descriptors: int
    children: int
    disk: int  # bytes of the files in its folders
    shared: int  # bytes of files in /dev/shm that appeared since it began

    def as_json(self) -> dict[str, float]:
        """Returns the fields by name."""
        return asdict(self)


ALLOWED = {
    "memory": 0.01,
    "objects": 1.0,
    "snapshots": 0.5,
    "threads": 0.5,
    "descriptors": 0.5,
    "children": 0.5,
    "disk": 65536.0,
    "shared": 0.5,
}
"""How much more may be there at the end than at the beginning without counting as growth.

A share of the level for memory, whose allocator moves in arenas; so many of Python's objects for each use, as
TensorFlow loses a list with each call that fails; less than one of what is counted singly."""


@dataclass(frozen=True)
class Drift:
    """How one of the sampled quantities went."""

    name: str
    level: float  # its median over the first of the judged samples
    per_hour: float  # the slope, and the ends of its 95% interval
    low: float
    high: float
    judged_s: float  # from the first judged sample to the last
    allowed: float  # how much may come in that time

    @property
    def grown(self) -> float:
        """What the slope comes to over the judged time."""
        return self.per_hour * self.judged_s / 3600

    @property
    def leaks(self) -> bool:
        """Whether the whole interval is above zero, and the growth above what is allowed."""
        return self.low > 0 and self.grown > self.allowed


def give_back() -> None:
    """Collects garbage, and has the allocator return what nobody holds to the system."""
    while gc.collect():
        pass
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)


def take(
    process: psutil.Process, began_s: float, now_s: float, uses: int, folder: Path, before: set[str]
) -> Sample:
    """Collects garbage and returns a sample; `before` are the names in /dev/shm when the process began."""
    from overlap_train._snapshot import Snapshot  # imports TensorFlow, which `--help` is not to wait for

    give_back()
    objects = gc.get_objects()
    with process.oneshot():
        memory, threads = process.memory_info().rss, process.num_threads()
    return Sample(
        time_s=now_s - began_s,
        uses=uses,
        memory=memory,
        objects=len(objects),
        snapshots=sum(type(thing) is Snapshot for thing in objects),
        threads=threads,
        descriptors=process.num_fds(),
        children=len(process.children(recursive=True)),
        disk=sum(_size(path) for path in folder.rglob("*") if path.is_file()),
        shared=sum(_size(path) for path in _SHARED.glob("*") if path.name not in before),
    )


def drifts(samples: Sequence[Sample]) -> list[Drift]:
    """Returns how each quantity went over the later two thirds of the samples."""
    judged = samples[int(len(samples) * _WARM_UP) :]
    if len(judged) < _LEAST:
        raise ValueError(f"{len(samples)} samples are too few to judge; give the soak more time")
    times_h = np.array([sample.time_s for sample in judged]) / 3600
    return [_drift(name, judged, times_h) for name in ALLOWED]


def _drift(name: str, judged: Sequence[Sample], times_h: np.ndarray) -> Drift:
    values = np.array([float(getattr(sample, name)) for sample in judged])
    slope, _, low, high = stats.theilslopes(values, times_h)
    level = float(np.median(values[: max(3, len(values) // 4)]))
    judged_s = float(times_h[-1] - times_h[0]) * 3600
    uses = judged[-1].uses - judged[0].uses
    per = {"memory": level, "objects": uses}.get(name, 1.0)
    return Drift(name, level, float(slope), float(low), float(high), judged_s, ALLOWED[name] * per)


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:  # it has just been removed
        return 0
