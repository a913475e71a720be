"""What a policy is, the board that it looks at, and the policies that look at one layer at a time.

A policy's methods are called under the lock of the engine (or simulator), which owns the board and updates
it; one policy object serves one engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from overlap_train._support.arguments import short_repr
from overlap_train.errors import SchedulingError
from overlap_train.scheduling.costs import Costs
from overlap_train.scheduling.graph import REQUEST, Device, Job, LayerGraph, Platform, Request

__all__ = ["Board", "CpuOnly", "GpuOnly", "Paper", "Policy", "selected"]


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
        """Return a board for trials."""
        other = Board(self.platform, self.costs)
        other.now_s, other.active_requests = self.now_s, self.active_requests
        other._waiting_s, other._waiting = dict(self._waiting_s), dict(self._waiting)
        other._ends_s = {name: dict(ends) for name, ends in self._ends_s.items()}
        return other

    def expect(self, device: Device, seconds: float) -> None:
        """Count one more job of `seconds` that waits for `device`."""
        self._waiting[device.name] += 1
        self._waiting_s[device.name] += seconds

    def dropped(self, job: Job) -> None:
        """Take a job off the queue, to be run or because its request failed."""
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
        """Return when a job would begin that is queued behind everything waiting on `device`."""
        ends = self._ends_s[device.name]
        if len(ends) + self._waiting[device.name] < device.slots:
            return self.now_s
        each_s = self._left_s(device)
        left_s = sum(each_s)
        if device.slots == 1:
            return self.now_s + left_s + self._waiting_s[device.name]
        shared_s = (left_s + self._waiting_s[device.name]) / device.slots
        if len(ends) < device.slots:
            # The waiting jobs are about to begin in free slots, so slots with long jobs do not matter.
            return self.now_s + min(shared_s, self._waiting_s[device.name] / (device.slots - len(ends)))
        return self.now_s + max(min(each_s), shared_s)

    def left_s(self, device: Device) -> float:
        """Seconds of work that are left of what runs on `device`, of all slots together."""
        return sum(self._left_s(device))

    def _left_s(self, device: Device) -> list[float]:
        # A job that is late is assumed to need as long again as it is late.
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
        """Return how long a layer would occupy a slot of `device`, transfers included."""
        seconds = self.costs.seconds(request.layer(index), device, request.examples)
        return self.transfer_in_s(request, index, places, device) + seconds

    def done_s(self, request: Request, index: int, places: Mapping[int, str], device: Device) -> float:
        """Return when a layer would be done on `device`, behind the jobs that wait there."""
        return self.free_s(device) + self.run_s(request, index, places, device)

    def held_up_s(self, device: Device, seconds: float) -> float:
        """Return by how much all other requests together are delayed by `seconds` on a slot of `device`.

        Each is assumed to need every device with equal probability, and to wait for its share of the time. So
        no request takes a device for a small gain while the others lose more.
        """
        return (self.active_requests - 1) * seconds / device.slots / len(self.platform.devices)

    def busy(self, device: Device) -> int:
        """Jobs that wait for or run on `device`."""
        return self._waiting[device.name] + len(self._ends_s[device.name])


class Policy(ABC):
    """Choose the device of each layer of each request; the base class of all policies."""

    name: str

    def prepare(self, graph: LayerGraph, board: Board) -> None:
        """Prepare for requests for `graph`: do now what takes long."""

    def admit(self, request: Request, board: Board) -> None:
        """Take in a request that was accepted. Called once, before any of its layers is selected."""

    @abstractmethod
    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device for layer `index`, all of whose inputs exist.

        Args:
            request: whose layer it is.
            index: which.
            places: the device of each layer of the request that has run or runs.
            board: the machine at this moment.
        """

    def runs_whole(self, request: Request, index: int, places: dict[int, str], board: Board) -> bool:
        """Return whether layer `index` runs whole, now that the first of its pieces could begin.

        The default: if by the policy's own estimate the request would then be done no later.
        """
        return _whole_is_sooner(self, request, index, places, board)

    def tail_s(self, request: Request, index: int, device: Device, board: Board) -> float:
        """Return the seconds from a layer's end on `device` to the request's end; 0 without looking ahead."""
        return 0.0

    def may_move(self, request: Request) -> bool:
        """Return whether waiting layers of a request may move to another device that has become idle."""
        return False

    def rank(self, request: Request, index: int, board: Board) -> float:
        """Return the rank of a layer among those of equally urgent requests; the larger goes first."""
        return 0.0

    def release(self, request: Request) -> None:
        """Forget a request that is done or has failed."""


def selected(policy: Policy, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
    """Return the device that a policy selects, checked, as the policy may be a custom one."""
    device = policy.select(request, index, places, board)
    if not isinstance(device, Device) or device not in board.platform.devices:
        raise SchedulingError(
            f"{type(policy).__name__}.select must return one of the platform's devices, "
            f"board.platform.devices; got {short_repr(device)}"
        )
    return device


def _earliest(kind: str, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
    """Return the device of a kind on which the layer would finish first; of all if there are none."""
    devices = board.platform.of_kind(kind) or board.platform.devices
    if len(devices) == 1:
        return devices[0]
    return min(devices, key=lambda device: board.done_s(request, index, places, device))


def _whole_is_sooner(
    policy: Policy, request: Request, index: int, places: dict[int, str], board: Board
) -> bool:
    """Compare both forms of layer `index`, each part put where the policy would put it.

    What counts is when the request is done by the policy's estimate, plus what the form takes from every
    other request. Equal forms, such as ones without estimates, run whole.
    """
    # What the layer reads besides its pieces may have no place yet; then it is assumed to be at home.
    whole_places = {port.source: board.platform.home for port in request.graph.layers[index].ports()} | places
    whole_s = _whole_s(policy, request, index, whole_places, board)
    trial, trial_places = board.copy(), dict(whole_places)
    ready_s, held_up_s = board.now_s, 0.0
    for piece in request.graph.pieces[index]:
        device = selected(policy, request, piece, trial_places, trial)
        seconds = trial.run_s(request, piece, trial_places, device)
        ready_s = max(ready_s, trial.free_s(device) + seconds)
        held_up_s += trial.held_up_s(device, seconds)
        if ready_s + held_up_s >= whole_s:
            return True
        trial.expect(device, seconds)
        trial_places[piece] = device.name
    device = selected(policy, request, index, trial_places, board)
    join_s = board.run_s(request, index, trial_places, device)
    join_s += board.held_up_s(device, join_s) + policy.tail_s(request, index, device, board)
    return ready_s + held_up_s + join_s >= whole_s


def _whole_s(policy: Policy, request: Request, index: int, places: dict[int, str], board: Board) -> float:
    request.whole[index] = True
    try:
        device = selected(policy, request, index, places, board)
        seconds = board.run_s(request, index, places, device)
    finally:
        del request.whole[index]
    return (
        board.free_s(device)
        + seconds
        + board.held_up_s(device, seconds)
        + policy.tail_s(request, index, device, board)
    )


class GpuOnly(Policy):
    """Everything on the GPU; with several, on the one that finishes first."""

    name = "gpu_only"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device on which a layer is to run."""
        return _earliest("gpu", request, index, places, board)


class CpuOnly(Policy):
    """Everything on the CPU."""

    name = "cpu_only"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device on which a layer is to run."""
        return _earliest("cpu", request, index, places, board)


class Paper(Policy):
    """Convolutions on the GPU, everything else on the CPU (P4, core selector)."""

    name = "paper"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device on which a layer is to run."""
        kind = "gpu" if request.layer(index).work.kind in ("conv", "depthwise") else "cpu"
        return _earliest(kind, request, index, places, board)
