"""The state of the machine as policies see it: what waits and runs on each device.

Owned by the engine (or simulator) that updates it, under its lock.
"""

from __future__ import annotations

from collections.abc import Mapping

from overlap_train.scheduling.costs.model import Costs
from overlap_train.scheduling.graph.devices import Device, Platform
from overlap_train.scheduling.graph.layers import REQUEST
from overlap_train.scheduling.graph.requests import Job, Request

__all__ = ["Board"]


class Board:
    """Predicts when each device could begin one more job."""

    def __init__(self, platform: Platform, costs: Costs) -> None:
        self.platform = platform
        self.costs = costs
        self.now_s = 0.0
        self.active_requests = 0
        self._waiting_s = {device.name: 0.0 for device in platform.devices}
        self._waiting = {device.name: 0 for device in platform.devices}
        self._ends_s: dict[str, dict[int, float]] = {device.name: {} for device in platform.devices}

    def copy(self) -> Board:
        """A board to try things on."""
        other = Board(self.platform, self.costs)
        other.now_s, other.active_requests = self.now_s, self.active_requests
        other._waiting_s, other._waiting = dict(self._waiting_s), dict(self._waiting)
        other._ends_s = {name: dict(ends) for name, ends in self._ends_s.items()}
        return other

    def queued(self, job: Job) -> None:
        """Count a job that waits for its device."""
        self.expect(job.device, job.predicted_s)

    def expect(self, device: Device, seconds: float) -> None:
        """One more job of `seconds` waits for `device`."""
        self._waiting[device.name] += 1
        self._waiting_s[device.name] += seconds

    def dropped(self, job: Job) -> None:
        """A job left the queue, to be run or because its request failed."""
        name = job.device.name
        self._waiting[name] -= 1
        self._waiting_s[name] = self._waiting_s[name] - job.predicted_s if self._waiting[name] else 0.0

    def started(self, job: Job) -> None:
        """Move a job from those that wait to those that run."""
        self.dropped(job)
        self._ends_s[job.device.name][id(job)] = self.now_s + job.predicted_s

    def ended(self, job: Job) -> None:
        """Forget a job that ran."""
        self._ends_s[job.device.name].pop(id(job), None)

    def free_s(self, device: Device) -> float:
        """When a job that is put behind everything waiting on `device` would begin."""
        ends = self._ends_s[device.name]
        if len(ends) + self._waiting[device.name] < device.slots:
            return self.now_s
        each_s = self._left_s(device)
        left_s = sum(each_s)
        if device.slots == 1:
            return self.now_s + left_s + self._waiting_s[device.name]
        shared_s = (left_s + self._waiting_s[device.name]) / device.slots
        if len(ends) < device.slots:
            # Those that wait are about to begin: until then the slots that run something long do not matter.
            return self.now_s + min(shared_s, self._waiting_s[device.name] / (device.slots - len(ends)))
        return self.now_s + max(min(each_s), shared_s)

    def left_s(self, device: Device) -> float:
        """Seconds of work that are left of what runs on `device`, of all slots together."""
        return sum(self._left_s(device))

    def _left_s(self, device: Device) -> list[float]:
        # What has taken longer than expected is taken to need as much again as it is late.
        return [abs(end - self.now_s) for end in self._ends_s[device.name].values()]

    def idle(self, device: Device) -> int:
        """Slots for which neither a job runs nor one waits."""
        return max(device.slots - self.busy(device), 0)

    def transfer_in_s(self, request: Request, index: int, places: Mapping[int, str], device: Device) -> float:
        """Seconds to bring the inputs of a layer from where they are to `device`."""
        return sum(
            self.platform.transfer_s(
                self.platform.home if source == REQUEST else places[source],
                device.name,
                size * request.examples,
            )
            for source, size in request.graph.edge_bytes(request.layer(index))
        )

    def run_s(self, request: Request, index: int, places: Mapping[int, str], device: Device) -> float:
        """How long a layer would occupy a slot of `device`, transfers included."""
        seconds = self.costs.seconds(request.layer(index), device, request.examples)
        return self.transfer_in_s(request, index, places, device) + seconds

    def done_s(self, request: Request, index: int, places: Mapping[int, str], device: Device) -> float:
        """When a layer would be done on `device`, behind what waits there."""
        return self.free_s(device) + self.run_s(request, index, places, device)

    def held_up_s(self, device: Device, seconds: float) -> float:
        """How much later all other requests together are done if one takes so long of a slot of `device`.

        Each is taken to want any of the devices as likely meanwhile, and to wait for its share of that; so a
        device is not given to whoever would gain a little while the others lose more.
        """
        return (self.active_requests - 1) * seconds / device.slots / len(self.platform.devices)

    def busy(self, device: Device) -> int:
        """Jobs that wait for or run on `device`."""
        return self._waiting[device.name] + len(self._ends_s[device.name])
