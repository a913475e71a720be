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


@dataclass
class Work:
    """The seconds that the layers of all devices have run together, and how many run now.

    What it grew by while a layer ran, less the layer's own time, is what the others did meanwhile.
    """

    running: int = 0
    total_s: float = 0.0
    at_s: float = 0.0

    def change(self, now_s: float, by: int) -> float:
        """Count layers that begin or end now; return the seconds so far."""
        self.total_s += self.running * (now_s - self.at_s)
        self.at_s, self.running = now_s, self.running + by
        return self.total_s


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

    Cores share caches and memory, so a run takes longer next to others than alone. Both times are learned:
    a run tells that which it was nearer to. Without recent ones the first measurements count again: else a
    moment of load could have all requests refused, and no run would correct that.

    Args:
        alone_s: what was measured with nothing else running, by number of examples.
        beside_s: with every core at work.
    """

    _MOST = 16
    _MEMORY_S = 10.0

    def __init__(
        self, alone_s: Mapping[int, float] | None = None, beside_s: Mapping[int, float] | None = None
    ) -> None:
        self._first_s = {False: dict(alone_s or {}), True: dict(beside_s or alone_s or {})}
        self._recent: dict[tuple[bool, int], deque[tuple[float, float]]] = {}

    def add(self, now_s: float, examples: int, seconds: float, share: float = 0.0) -> None:
        """Add what a run took that ended now; `share` says for how much of it the other cores worked."""
        if examples not in self._first_s[False]:
            for first_s in self._first_s.values():
                first_s[examples] = seconds
        alone_s, beside_s = self._typical_s(now_s, examples)
        is_beside = share > 0.5
        # Where all other runs have been: the part of the difference that is not of this kind is taken out.
        part = share if is_beside else 1.0 - share
        other_s = alone_s if is_beside else beside_s
        kind_s = max(seconds - (1.0 - part) * other_s, 0.0) / part
        self._recent.setdefault((is_beside, examples), deque(maxlen=self._MOST)).append((now_s, kind_s))

    def typical_s(self, now_s: float, examples: int, others_s: float = 0.0, likely: float = 0.0) -> float:
        """Return what `examples` examples will take; 0 if nothing is known.

        Others work for `others_s` seconds, and behind them for a `likely` share of the time.
        """
        alone_s, beside_s = self._typical_s(now_s, examples)
        if others_s >= beside_s:
            return beside_s
        rest_s = alone_s + likely * (beside_s - alone_s)
        return others_s + (1.0 - others_s / beside_s) * rest_s

    def longest_s(self, now_s: float, examples: int) -> float:
        """Return the longest time for `examples` examples."""
        return max(s for beside in (False, True) for s in self._seconds(now_s, examples, beside))

    def _typical_s(self, now_s: float, examples: int) -> list[float]:
        """Return the medians, alone and next to others."""
        return [statistics.median(self._seconds(now_s, examples, beside)) for beside in (False, True)]

    def _seconds(self, now_s: float, examples: int, beside: bool) -> list[float]:
        """Return the times of the next larger number of examples; beyond the largest they grow with it."""
        first_s = self._first_s[beside]
        if not first_s:
            return [0.0]
        largest = max(first_s)
        nearest = min((known for known in first_s if known >= examples), default=largest)
        recent = self._recent.get((beside, nearest), ())
        times_s = [s for at_s, s in recent if now_s - at_s <= self._MEMORY_S] or [first_s[nearest]]
        return [s * max(examples / nearest, 1.0) for s in times_s]


def ends_s(now_s: float, lengths_s: Iterable[float], lanes: int) -> list[float]:
    """Return when runs end that begin in this order, each on the first of `lanes` that is free."""
    free_s, ends = [now_s] * lanes, []
    for length_s in lengths_s:
        ends.append(free_s[0] + length_s)
        heapq.heapreplace(free_s, ends[-1])
    return ends
