"""What was run, how long it took, which deadlines were missed, and what that predicts.

As in Clockwork (Gujarati et al., OSDI 2020), a run of a network takes nearly as long as the one before, so
the last runs predict the next one.
"""

from __future__ import annotations

import heapq
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from overlap_train.errors import DeadlineError
from overlap_train.scheduling.graph import Job


@dataclass
class DeviceAccount:
    """Hold the counts of one device.

    Attributes:
        jobs: number of layers run.
        busy_s: seconds inside layers, summed over slots.
        transfer_bytes: bytes copied to it from other devices.
        overhead_s: the workers' seconds outside layers while there was work: choosing, queueing, counting.
    """

    jobs: int = 0
    busy_s: float = 0.0
    transfer_bytes: int = 0
    overhead_s: float = 0.0

    def book(self, job: Job, seconds: float) -> None:
        """Add what one job took."""
        self.jobs += 1
        self.busy_s += seconds
        self.transfer_bytes += job.transfer_bytes


@dataclass(frozen=True)
class ModelStatistics:
    """Hold the counts of one model. Latencies run from `submit` to the result, over the last 1024 requests.

    Attributes:
        submitted: requests accepted.
        completed: requests that ended with a result.
        failed: requests that ended with an exception.
        rejected: requests not accepted because the model's queue was full.
        refused: requests not accepted because they would have been late.
        dropped: requests accepted and then not run, because they would have been late.
        met: requests completed by their deadline.
        missed: requests completed or failed after their deadline.
        worst_lateness_s: the most seconds by which a deadline was missed.
        batches: runs of the network; fewer than `completed` where requests were batched together.
        latency_mean_s: mean latency.
        latency_p50_s: median latency.
        latency_p95_s: 95th percentile.
        latency_p99_s: 99th percentile.
        cost_error: the mean relative error of the predicted time in layers.
    """

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    rejected: int = 0
    refused: int = 0
    dropped: int = 0
    met: int = 0
    missed: int = 0
    worst_lateness_s: float = 0.0
    batches: int = 0
    latency_mean_s: float = 0.0
    latency_p50_s: float = 0.0
    latency_p95_s: float = 0.0
    latency_p99_s: float = 0.0
    cost_error: float = 0.0


@dataclass(frozen=True)
class SchedulerStatistics:
    """Describe the state of a scheduler at one moment.

    Attributes:
        models: the statistics of the models in service, by name.
        devices: the accounts of the devices, by name.
        waiting: number of requests that are accepted and have not begun.
        active: number of runs of networks that have begun and not ended.
    """

    models: dict[str, ModelStatistics]
    devices: dict[str, DeviceAccount]
    waiting: int
    active: int

    def __str__(self) -> str:
        """Return a table of the models: latencies, and what became of the deadlines."""
        lines = [f"{'model':20} {'done':>6} {'runs':>6} {'p50':>8} {'p95':>8} {'p99':>8}   deadlines"]
        for name, model in self.models.items():
            latencies = (model.latency_p50_s, model.latency_p95_s, model.latency_p99_s)
            shown = " ".join(f"{1e3 * seconds:5.1f} ms" for seconds in latencies)
            lines.append(
                f"{name:20} {model.completed:6} {model.batches:6} {shown}   {model.met} met, "
                f"{model.missed} missed, {model.dropped} dropped, {model.refused} refused"
            )
        return "\n".join(lines)

    @property
    def overhead(self) -> float:
        """The scheduler's own time as a share of the time inside layers."""
        busy_s = sum(account.busy_s for account in self.devices.values())
        own_s = sum(account.overhead_s for account in self.devices.values())
        return own_s / busy_s if busy_s else 0.0


@dataclass
class ModelAccount:
    """The counts behind `ModelStatistics`, by its names; owned by the scheduler's lock."""

    counts: Counter[str] = field(default_factory=Counter)
    worst_lateness_s: float = 0.0
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=1024))
    cost_errors: deque[float] = field(default_factory=lambda: deque(maxlen=1024))

    def book(
        self, *, arrival_s: float, end_s: float, deadline_s: float | None, error: BaseException | None
    ) -> None:
        """Add what one request took."""
        if isinstance(error, DeadlineError):
            self.counts["dropped"] += 1
            return
        self.counts["completed" if error is None else "failed"] += 1
        if error is None:
            self.latencies_s.append(end_s - arrival_s)
        if deadline_s is not None and end_s > deadline_s:
            self.counts["missed"] += 1
            self.worst_lateness_s = max(self.worst_lateness_s, end_s - deadline_s)
        elif deadline_s is not None and error is None:
            self.counts["met"] += 1

    def statistics(self) -> ModelStatistics:
        """Return the counts and the latencies so far."""
        latencies = np.array(self.latencies_s or [0.0])
        p50_s, p95_s, p99_s = np.percentile(latencies, (50, 95, 99)).tolist()
        return ModelStatistics(
            **self.counts,
            worst_lateness_s=self.worst_lateness_s,
            latency_mean_s=float(latencies.mean()),
            latency_p50_s=p50_s,
            latency_p95_s=p95_s,
            latency_p99_s=p99_s,
            cost_error=float(np.mean(self.cost_errors or [0.0])),
        )


class RunTimes:
    """The seconds that recent runs of one model spent in its layers, by their number of examples.

    Cores share caches and memory, so runs alone and runs next to others are counted apart. Without recent
    ones the first measurement counts again: else a moment of load could have all requests refused, and no
    run would correct that.

    Args:
        alone_s: what was measured with nothing else running, by number of examples.
        beside_s: with every core at work.
    """

    _MOST = 64
    _MEMORY_S = 10.0

    def __init__(
        self, alone_s: Mapping[int, float] | None = None, beside_s: Mapping[int, float] | None = None
    ) -> None:
        self._first_s = {False: dict(alone_s or {}), True: dict(beside_s or alone_s or {})}
        self._recent: dict[tuple[bool, int], deque[tuple[float, float]]] = {}

    def add(self, now_s: float, examples: int, seconds: float, *, beside: bool = False) -> None:
        """Add what a run took that ended now, alone or next to others."""
        for first_s in self._first_s.values():
            first_s.setdefault(examples, seconds)
        self._recent.setdefault((beside, examples), deque(maxlen=self._MOST)).append((now_s, seconds))

    def typical_s(self, now_s: float, examples: int, *, beside: bool = False) -> float:
        """Return the median for `examples` examples, alone or next to others; 0 if nothing is known."""
        return statistics.median(self._seconds(now_s, examples, beside))

    def longest_s(self, now_s: float, examples: int) -> float:
        """Return the longest time for `examples` examples, whether others run or not."""
        return max(self._seconds(now_s, examples, False, True))

    def _seconds(self, now_s: float, examples: int, *kinds: bool) -> list[float]:
        """Return the times of the next larger number of examples; beyond the largest they grow with it."""
        first_s = self._first_s[kinds[-1]]
        if not first_s:
            return [0.0]
        largest = max(first_s)
        nearest = min((known for known in first_s if known >= examples), default=largest)
        runs = (run for kind in kinds for run in self._recent.get((kind, nearest), ()))
        recent = [seconds for at_s, seconds in runs if now_s - at_s <= self._MEMORY_S]
        return [s * max(examples / nearest, 1.0) for s in recent or [first_s[nearest]]]


def ends_s(now_s: float, lengths_s: Iterable[float], lanes: int) -> list[float]:
    """Return when runs end that begin in this order, each on the first of `lanes` that is free."""
    free_s, ends = [now_s] * lanes, []
    for length_s in lengths_s:
        ends.append(free_s[0] + length_s)
        heapq.heapreplace(free_s, ends[-1])
    return ends
