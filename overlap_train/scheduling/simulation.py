"""The scheduler on a virtual clock: the same controllers, distributor, policies and queue, no threads.

For a platform that is not at hand, and to check what a policy would do before running it. What it
returns is *simulated*, never measured.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from overlap_train.scheduling.costs import Costs, FixedCosts
from overlap_train.scheduling.distributor import JobQueue, LayerDistributor
from overlap_train.scheduling.graph import Device, Job, Layer, LayerGraph, Platform, Request
from overlap_train.scheduling.policy import Board, Policy, make_policy


@dataclass(frozen=True, slots=True)
class BackgroundLoad:
    """Other work on a device, which leaves us a `share` of its speed in the first part of each period."""

    duty: float
    share: float = 0.0
    period_s: float = 0.01
    phase_s: float = 0.0

    def end_s(self, start_s: float, work_s: float) -> float:
        """Return when work ends that begins at `start_s` and takes `work_s` seconds undisturbed."""
        busy_s, idle_s = self.duty * self.period_s, (1 - self.duty) * self.period_s
        per_period = busy_s * self.share + idle_s
        phase_s = math.fmod(start_s + self.phase_s, self.period_s)
        # Work that one would have done since the beginning of this period counts as still to do.
        done_s = phase_s * self.share if phase_s < busy_s else busy_s * self.share + phase_s - busy_s
        periods, rest_s = divmod(work_s + done_s, per_period)
        if rest_s <= busy_s * self.share:
            within_s = rest_s / self.share if self.share else (busy_s if rest_s else 0.0)
        else:
            within_s = busy_s + rest_s - busy_s * self.share
        return max(start_s - phase_s + periods * self.period_s + within_s, start_s)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Describe a request to simulate: `graph` at `time_s`, with the attributes of `Request`."""

    graph: LayerGraph
    time_s: float = 0.0
    priority: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """When and where one layer ran, in virtual seconds."""

    request: int
    network: str
    layer: str
    device: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Simulation:
    """Jobs in order of completion, when each arrival was done, and the seconds in jobs by device."""

    jobs: tuple[SimulatedJob, ...]
    finish_s: tuple[float, ...]
    busy_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def makespan_s(self) -> float:
        """Seconds from the beginning to the end of the last request."""
        return max(self.finish_s)


def simulate(
    arrivals: Sequence[Arrival],
    platform: Platform,
    policy: str | Policy,
    true_s: Callable[[Layer, Device], float],
    *,
    costs: Costs | None = None,
    loads: Mapping[str, BackgroundLoad] | None = None,
    memory_bytes_per_s: float = math.inf,
) -> Simulation:
    """Run requests, at least one, to completion on a virtual clock.

    `true_s` returns the seconds of a layer on an undisturbed slot; `costs`, what the policy expects and then
    observes, is the same unless given. With `memory_bytes_per_s` all devices share the memory (HaX-CoNN,
    Dagli and Belviranli 2024): where the layers that run when another begins would move more with it, that
    one takes longer in proportion.
    """
    board = Board(platform, costs if costs is not None else FixedCosts(true_s))
    queue = JobQueue(tuple(platform.devices))
    distributor = LayerDistributor(make_policy(policy), board, queue)
    return _Run(board, queue, distributor, true_s, loads or {}, memory_bytes_per_s).of(arrivals)


@dataclass(eq=False)
class _Run:
    _board: Board
    _queue: JobQueue
    _distributor: LayerDistributor
    _true_s: Callable[[Layer, Device], float]
    _loads: Mapping[str, BackgroundLoad]
    _memory_bytes_per_s: float

    def __post_init__(self) -> None:
        self._platform, self._costs = self._board.platform, self._board.costs
        self._traffic: dict[int, float] = {}  # bytes a second, by the job that runs
        self._idle = {device.name: device.slots for device in self._platform.devices}
        self._order = itertools.count()
        self._events: list[tuple[float, int, Job | Request, float]] = []
        self._jobs: list[SimulatedJob] = []
        self._finish_s: dict[int, float] = {}

    def of(self, arrivals: Sequence[Arrival]) -> Simulation:
        for number, arrival in enumerate(arrivals):
            request = Request(number, arrival.graph, (), arrival.time_s, arrival.priority, arrival.deadline_s)
            heapq.heappush(self._events, (arrival.time_s, next(self._order), request, 0.0))
        while self._events:
            now_s, _, event, began_s = heapq.heappop(self._events)
            self._board.now_s = now_s
            if isinstance(event, Request):
                self._distributor.admit(event)
            else:
                self._end(event, began_s, now_s)
            if not self._events or self._events[0][0] > now_s:
                self._start_jobs(now_s)
        busy_s = {
            device.name: sum(job.end_s - job.start_s for job in self._jobs if job.device == device.name)
            for device in self._platform.devices
        }
        finish_s = tuple(self._finish_s.get(number, math.nan) for number in range(len(arrivals)))
        return Simulation(tuple(self._jobs), finish_s, busy_s)

    def _start_jobs(self, now_s: float) -> None:
        for device in self._platform.devices:
            while self._idle[device.name] and (job := self._queue.take_now(device)):
                self._idle[device.name] -= 1
                self._board.started(job)
                work_s = self._contended_s(job, self._true_s(job.layer, device)) + job.transfer_s
                load = self._loads.get(device.name)
                end_s = load.end_s(now_s, work_s) if load else now_s + work_s
                heapq.heappush(self._events, (end_s, next(self._order), job, now_s))

    def _contended_s(self, job: Job, seconds: float) -> float:
        """Return how long a layer takes that shares the memory with all that run."""
        work = job.layer.work
        self._traffic[id(job)] = (work.moved_bytes + work.weight_bytes) / seconds if seconds else 0.0
        return seconds * max(sum(self._traffic.values()) / self._memory_bytes_per_s, 1.0)

    def _end(self, job: Job, began_s: float, now_s: float) -> None:
        self._idle[job.device.name] += 1
        del self._traffic[id(job)]
        self._board.ended(job)
        self._costs.observe(job.layer, job.device, now_s - began_s - job.transfer_s)
        number = job.request.number
        self._jobs.append(
            SimulatedJob(number, job.request.graph.name, job.layer.name, job.device.name, began_s, now_s)
        )
        if self._distributor.complete(self._distributor.controllers[number], job, None):
            self._distributor.release(job.request)
            self._finish_s[number] = now_s
        self._distributor.rebalance()
