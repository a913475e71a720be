"""Requests, jobs, and the one bounded queue that workers take jobs from.

The queue owns its own lock; everything else here is frozen or owned by the thread that holds the
engine's lock.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from overlap_train.arguments import require_count, require_items
from overlap_train.errors import SchedulerClosedError
from overlap_train.scheduling.graph.devices import Device
from overlap_train.scheduling.graph.layers import Layer, LayerGraph

_LARGEST_PRIORITY = 1 << 53  # a float has no integers beyond it

__all__ = ["Job", "JobQueue", "Request", "require_priority"]


@dataclass(eq=False, slots=True)
class Request:
    """One inference through one network.

    Attributes:
        number: counts requests of this scheduler from 0.
        graph: the network.
        inputs: the tensors that it brings.
        arrival_s: when it was accepted, on the engine's clock.
        priority: larger is more urgent.
        deadline_s: when it should be done, on the engine's clock; None for whenever.
        examples: the batch, relative to the batch that the graph's figures are for.
        whole: for layers that join pieces, whether they run in one piece instead; set when the first piece
            could begin.
        on_done: called once with (request, outputs or None, error or None), on the thread that
            finished the last job.
    """

    number: int
    graph: LayerGraph
    inputs: tuple[Any, ...] = ()
    arrival_s: float = 0.0
    priority: int = 0
    deadline_s: float | None = None
    examples: float = 1.0
    on_done: Callable[[Request, Any, BaseException | None], None] | None = None
    whole: dict[int, bool] = field(default_factory=dict)

    def layer(self, index: int) -> Layer:
        """Layer `index` in the form in which it runs."""
        return self.graph.form(index, whole=self.whole.get(index, False))


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A layer of a request that is ready to run.

    Attributes:
        layer: what to run.
        inputs: its input tensors, in order.
        size_bytes: the bytes that these have together.
        request: whose it is.
        index: of the layer in the request's graph.
        device: where the core selector put it.
        transfer_bytes: what has to be brought to that device from others.
        transfer_s: how long that should take.
        predicted_s: how long it should take there, transfers included.
        urgency_s: smaller runs first; see `urgency`.
        rank: larger runs first among jobs that are equally urgent.
    """

    layer: Layer
    inputs: tuple[Any, ...]
    size_bytes: int
    request: Request
    index: int
    device: Device
    transfer_bytes: int = 0
    transfer_s: float = 0.0
    predicted_s: float = 0.0
    urgency_s: float = 0.0
    rank: float = 0.0


def require_priority(name: str, value: object) -> int:
    """Returns a priority as an int; raises TypeError, or ValueError where it cannot be weighed as a time."""
    return require_count(name, value, minimum=-_LARGEST_PRIORITY, maximum=_LARGEST_PRIORITY)


def urgency(request: Request, *, remaining_s: float, aging_s: float) -> float:
    """When a request would have to arrive to rank where it does, in seconds of the engine's clock.

    A unit of priority counts as having waited `aging_s` longer; a deadline ranks a request as if it
    had arrived at the last moment at which it can start and still meet it, if that is earlier. Since
    later requests get later values without bound, nobody starves.
    """
    rank_s = request.arrival_s - request.priority * aging_s
    if request.deadline_s is not None:
        rank_s = min(rank_s, request.deadline_s - remaining_s - aging_s)
    return rank_s


@dataclass(order=True, slots=True)
class _Entry:
    urgency_s: float
    minus_rank: float
    order: int
    job: Job = field(compare=False)


class JobQueue:
    """One queue for all devices: a worker takes the most urgent job that is meant for its device.

    Its length is bounded by the requests that are admitted, which the engine limits, since a request
    has no more jobs waiting than its graph is wide. Any thread may call any method.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        devices = require_items("devices", devices, Device, expected="a sequence of Device")
        self._lock = threading.Lock()
        self._ready = {device.name: threading.Condition(self._lock) for device in devices}
        self._heaps: dict[str, list[_Entry]] = {device.name: [] for device in devices}
        self._order = itertools.count()
        self._closed = False

    def put(self, job: Job) -> None:
        """Adds a job and wakes one worker of its device.

        Raises:
            SchedulerClosedError: the queue has been closed.
        """
        name = job.device.name
        with self._lock:
            if self._closed:
                raise SchedulerClosedError("the job queue is closed")
            heapq.heappush(self._heaps[name], _Entry(job.urgency_s, -job.rank, next(self._order), job))
            self._ready[name].notify()

    def take(self, device: Device) -> Job | None:
        """The most urgent job for `device`; waits for one. None once the queue is closed."""
        with self._lock:
            heap = self._heaps[device.name]
            while not heap and not self._closed:
                self._ready[device.name].wait()
            return heapq.heappop(heap).job if heap and not self._closed else None

    def take_now(self, device: Device) -> Job | None:
        """As `take`, but None at once when there is nothing for `device`."""
        with self._lock:
            heap = self._heaps[device.name]
            return heapq.heappop(heap).job if heap else None

    def waiting(self, device: Device, count: int) -> list[Job]:
        """The first `count` jobs that wait for `device`, the most urgent first."""
        with self._lock:
            return [entry.job for entry in heapq.nsmallest(count, self._heaps[device.name])]

    def remove(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Takes out all waiting jobs for which `unwanted` is true, and returns them."""
        removed: list[Job] = []
        with self._lock:
            for name, heap in self._heaps.items():
                removed += [entry.job for entry in heap if unwanted(entry.job)]
                kept = [entry for entry in heap if not unwanted(entry.job)]
                heapq.heapify(kept)
                self._heaps[name][:] = kept
        return removed

    def close(self) -> list[Job]:
        """Lets every worker go and returns the jobs that nobody took. May be called again."""
        left = self.remove(lambda job: True)
        with self._lock:
            self._closed = True
            for condition in self._ready.values():
                condition.notify_all()
        return left + self.remove(lambda job: True)

    def __len__(self) -> int:
        with self._lock:
            return sum(len(heap) for heap in self._heaps.values())
