"""The one bounded queue that workers take jobs from; it has a lock of its own."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from overlap_train.errors import SchedulerClosedError
from overlap_train.scheduling.graph.devices import Device
from overlap_train.scheduling.graph.requests import Job

__all__ = ["JobQueue"]


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
        self._lock = threading.Lock()
        self._ready = {device.name: threading.Condition(self._lock) for device in devices}
        self._heaps: dict[str, list[_Entry]] = {device.name: [] for device in devices}
        self._order = itertools.count()
        self._closed = False

    def put(self, job: Job) -> None:
        """Add a job and wake one worker of its device."""
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
        """Take out all waiting jobs for which `unwanted` is true, and return them."""
        removed: list[Job] = []
        with self._lock:
            for name, heap in self._heaps.items():
                removed += [entry.job for entry in heap if unwanted(entry.job)]
                kept = [entry for entry in heap if not unwanted(entry.job)]
                heapq.heapify(kept)
                self._heaps[name][:] = kept
        return removed

    def close(self) -> list[Job]:
        """Let every worker go and return the jobs that no worker took. May be called again."""
        left = self.remove(lambda job: True)
        with self._lock:
            self._closed = True
            for condition in self._ready.values():
                condition.notify_all()
        return left + self.remove(lambda job: True)

    def __len__(self) -> int:
        with self._lock:
            return sum(len(heap) for heap in self._heaps.values())
