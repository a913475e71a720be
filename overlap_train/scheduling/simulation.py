"""The scheduler on a virtual clock: the same controllers, distributor, policies and queue, no threads.

For a platform that is not at hand, and to check what a policy would do before running it. What it
returns is *simulated*, never measured.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass

import numpy as np

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
        busy_s = self.duty * self.period_s
        at_s = 0.0, busy_s, self.period_s  # times of a period, and the work that is done by then
        done_s = 0.0, busy_s * self.share, busy_s * self.share + self.period_s - busy_s
        phase_s = math.fmod(start_s + self.phase_s, self.period_s)
        # Work that one would have done since the beginning of this period counts as still to do.
        periods, rest_s = divmod(work_s + float(np.interp(phase_s, at_s, done_s)), done_s[-1])
        if rest_s < done_s[1]:  # by division, as the smallest shares have no finite inverse
            within_s = rest_s / self.share
        else:
            within_s = busy_s + rest_s - done_s[1] if rest_s else 0.0
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
    """Jobs in order of completion, and when each arrival was done."""

    jobs: tuple[SimulatedJob, ...]
    finish_s: tuple[float, ...]

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
    run = _Run(board, make_policy(policy), true_s, loads or {}, memory_bytes_per_s)
    for number, arrival in enumerate(arrivals):
        request = Request(number, arrival.graph, (), arrival.time_s, arrival.priority, arrival.deadline_s)
        run.at(arrival.time_s, functools.partial(run.distributor.admit, request))
    run.to_the_end()
    finish_s = (run.finish_s.get(number, math.nan) for number in range(len(arrivals)))
    return Simulation(tuple(run.jobs), tuple(finish_s))


@dataclass(eq=False)
class _Run:
    _board: Board
    policy: InitVar[Policy]
    _true_s: Callable[[Layer, Device], float]
    _loads: Mapping[str, BackgroundLoad]
    _memory_bytes_per_s: float

    def __post_init__(self, policy: Policy) -> None:
        self._devices = self._board.platform.devices
        self._queue = JobQueue(self._devices)
        self.distributor = LayerDistributor(policy, self._board, self._queue)
        self._traffic: dict[Job, float] = {}  # bytes a second, by the job that runs
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.jobs: list[SimulatedJob] = []
        self.finish_s: dict[int, float] = {}  # by the number of the request

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        """Have something happen at a time."""
        heapq.heappush(self._events, (time_s, next(self._order), event))

    def to_the_end(self) -> None:
        """Have everything happen."""
        while self._events:
            self._board.now_s, _, event = heapq.heappop(self._events)
            event()
            if not self._events or self._events[0][0] > self._board.now_s:
                self._start_jobs(self._board.now_s)

    def _start_jobs(self, now_s: float) -> None:
        for device in self._devices:
            while self._has_slot(device) and (job := self._queue.take_now(device)):
                self._board.started(job)
                work_s = self._contended_s(job, self._true_s(job.layer, device)) + job.transfer_s
                load = self._loads.get(device.name)
                end_s = load.end_s(now_s, work_s) if load else now_s + work_s
                self.at(end_s, functools.partial(self._end, job, now_s))

    def _has_slot(self, device: Device) -> bool:
        return sum(job.device == device for job in self._traffic) < device.slots

    def _contended_s(self, job: Job, seconds: float) -> float:
        """Return how long a layer takes that shares the memory with all that run."""
        work = job.layer.work
        self._traffic[job] = (work.moved_bytes + work.weight_bytes) / seconds if seconds else 0.0
        return seconds * max(sum(self._traffic.values()) / self._memory_bytes_per_s, 1.0)

    def _end(self, job: Job, began_s: float) -> None:
        now_s, request = self._board.now_s, job.request
        del self._traffic[job]
        self._board.ended(job)
        self._board.costs.observe(job.layer, job.device, now_s - began_s - job.transfer_s)
        names = request.graph.name, job.layer.name, job.device.name
        self.jobs.append(SimulatedJob(request.number, *names, began_s, now_s))
        if self.distributor.complete(self.distributor.controllers[request.number], job, None):
            self.distributor.release(request)
            self.finish_s[request.number] = now_s
        self.distributor.rebalance()
