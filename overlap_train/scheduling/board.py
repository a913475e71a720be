"""The state of the machine as policies see it: what waits and runs on each device.

Owned by the engine (or simulator) that updates it, under its lock.
"""

from __future__ import annotations

from overlap_train.scheduling.costs import Costs
from overlap_train.scheduling.devices import Device, Platform
from overlap_train.scheduling.jobs import Job

__all__ = ["Board"]


class Board:
    """Predicts when each device could begin one more job.

    Args:
        platform: the devices.
        costs: how long layers take.
    """

    def __init__(self, platform: Platform, costs: Costs) -> None:
        self.platform = platform
        self.costs = costs
        self.now_s = 0.0
        self.active_requests = 0
        self._waiting_s = {device.name: 0.0 for device in platform.devices}
        self._waiting = {device.name: 0 for device in platform.devices}
        self._ends_s: dict[str, dict[int, float]] = {device.name: {} for device in platform.devices}

    def queued(self, job: Job) -> None:
        self._waiting[job.device.name] += 1
        self._waiting_s[job.device.name] += job.predicted_s

    def dropped(self, job: Job) -> None:
        """A job left the queue, to be run or because its request failed."""
        name = job.device.name
        self._waiting[name] -= 1
        self._waiting_s[name] = self._waiting_s[name] - job.predicted_s if self._waiting[name] else 0.0

    def started(self, job: Job) -> None:
        self.dropped(job)
        self._ends_s[job.device.name][id(job)] = self.now_s + job.predicted_s

    def ended(self, job: Job) -> None:
        self._ends_s[job.device.name].pop(id(job), None)

    def free_s(self, device: Device) -> float:
        """When a job that is put behind everything waiting on `device` would begin."""
        ends = self._ends_s[device.name]
        if len(ends) + self._waiting[device.name] < device.slots:
            return self.now_s
        left_s = sum(max(end - self.now_s, 0.0) for end in ends.values())
        if device.slots == 1:
            return self.now_s + left_s + self._waiting_s[device.name]
        shared_s = (left_s + self._waiting_s[device.name]) / device.slots
        if len(ends) < device.slots:
            # Those that wait are about to begin: until then the slots that run something long do not matter.
            return self.now_s + min(shared_s, self._waiting_s[device.name] / (device.slots - len(ends)))
        return self.now_s + max(min(max(end - self.now_s, 0.0) for end in ends.values()), shared_s)

    def busy(self, device: Device) -> int:
        """Jobs that wait for or run on `device`."""
        return self._waiting[device.name] + len(self._ends_s[device.name])
