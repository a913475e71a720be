"""Where a layer goes: the policies, and the board that they look at.

A policy's methods are called under the lock of the engine (or simulator), which owns the board and updates
it; one policy object serves one engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping

from overlap_train._support.arguments import require_choice, short_repr
from overlap_train.errors import SchedulingError
from overlap_train.scheduling.costs import Costs
from overlap_train.scheduling.graph import REQUEST, Device, Job, Layer, LayerGraph, Platform, Request

_LIFETIME_S = 0.25
_MOST_TABLES = 64


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
        self._tails: OrderedDict[tuple[int, float], tuple[LayerGraph, int, float, list[list[float]]]] = (
            OrderedDict()
        )

    def form(self, graph: LayerGraph) -> LayerGraph:
        """Return the graph that a new request for `graph` runs: in pieces if cores are idle."""
        slots = sum(device.slots for device in self.platform.devices)
        return graph.pieces if graph.pieces is not None and 2 * (self.active_requests + 1) <= slots else graph

    def tails_s(self, graph: LayerGraph, examples: float) -> list[list[float]]:
        """Return `optimistic_costs`; made anew when the load has changed, but only a few times a second."""
        key, version = (id(graph), examples), self.costs.version
        entry = self._tails.get(key)
        if entry is None or (entry[1] != version and self.now_s >= entry[2] + _LIFETIME_S):
            # The graph is stored with its table, so that no other graph gets its id.
            table = optimistic_costs(graph, self.platform, self.costs, examples)
            entry = self._tails[key] = (graph, version, self.now_s, table)
            if len(self._tails) > _MOST_TABLES:
                self._tails.popitem(last=False)
        return entry[3]

    def least_s(self, graph: LayerGraph, examples: float) -> float:
        """Return the seconds that a request needs at least if it has the machine to itself."""
        tails_s = self.tails_s(graph, examples)
        return max(
            min(
                self.costs.seconds(layer, device, examples) + tail_s
                for device, tail_s in zip(self.platform.devices, tails_s[index], strict=True)
            )
            for index, layer in enumerate(graph.layers)
            if not graph.predecessors[index]
        )

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
        each_s = self.left_s(device)
        left_s = sum(each_s)
        if device.slots == 1:
            return self.now_s + left_s + self._waiting_s[device.name]
        shared_s = (left_s + self._waiting_s[device.name]) / device.slots
        if len(ends) < device.slots:
            # The waiting jobs are about to begin in free slots, so slots with long jobs do not matter.
            return self.now_s + min(shared_s, self._waiting_s[device.name] / (device.slots - len(ends)))
        return self.now_s + max(min(each_s), shared_s)

    def left_s(self, device: Device) -> list[float]:
        """Seconds of work that are left of each job that runs on `device`."""
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
            for source, size in request.graph.edge_bytes(request.graph.layers[index])
        )

    def run_s(self, request: Request, index: int, places: Mapping[int, str], device: Device) -> float:
        """Return how long a layer would occupy a slot of `device`, transfers included."""
        seconds = self.costs.seconds(request.graph.layers[index], device, request.examples)
        return self.transfer_in_s(request, index, places, device) + seconds

    def done_s(self, request: Request, index: int, places: Mapping[int, str], device: Device) -> float:
        """Return when a layer would be done on `device`, behind the jobs that wait there."""
        return self.free_s(device) + self.run_s(request, index, places, device)

    def held_up_s(self, device: Device, seconds: float) -> float:
        """Return by how much other requests are delayed, if each wants any device with equal probability."""
        return (self.active_requests - 1) * seconds / device.slots / len(self.platform.devices)

    def busy(self, device: Device) -> int:
        """Jobs that wait for or run on `device`."""
        return self._waiting[device.name] + len(self._ends_s[device.name])


def optimistic_costs(
    graph: LayerGraph, platform: Platform, costs: Costs, examples: float = 1.0
) -> list[list[float]]:
    """`[layers][devices]` seconds from a layer's end to the request's (PEFT, Arabnejad, Barbosa 2014)."""
    devices, names = platform.devices, [device.name for device in platform.devices]
    table = [[0.0 for _ in devices] for _ in graph.layers]
    for after in range(len(graph) - 1, -1, -1):
        layer = graph.layers[after]
        run_s = [costs.seconds(layer, device, examples) for device in devices]
        moved: dict[int, float] = {}
        for source, size in graph.edge_bytes(layer):
            moved[source] = moved.get(source, 0.0) + size * examples
        for source in graph.predecessors[after]:
            for number, here in enumerate(names):
                least_s = min(
                    platform.transfer_s(here, there, moved[source]) + seconds + tail_s
                    for there, seconds, tail_s in zip(names, run_s, table[after], strict=True)
                )
                table[source][number] = max(table[source][number], least_s)
    return table


class Policy(ABC):
    """Choose the device of each layer of each request; the base class of all policies."""

    name: str
    moves = False
    """Whether another device may take a layer that waits."""

    @abstractmethod
    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device for layer `index`, all of whose inputs exist.

        Args:
            request: the request that the layer belongs to.
            index: the layer's index in the request's graph.
            places: the device of each layer of the request that has run or runs.
            board: the state of the machine.
        """

    def tail_s(self, request: Request, index: int, device: Device, board: Board) -> float:
        """Return the seconds from a layer's end on `device` to the request's end; 0 without looking ahead."""
        return 0.0

    def rank(self, request: Request, index: int, board: Board) -> float:
        """Return the rank of a layer among those of equally urgent requests; the largest goes first."""
        return 0.0


def selected(policy: Policy, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
    """Return the device that a policy selects, checked, as the policy may be a custom one."""
    device = policy.select(request, index, places, board)
    if not isinstance(device, Device) or device not in board.platform.devices:
        raise SchedulingError(
            f"{type(policy).__name__}.select must return one of the platform's devices, "
            f"board.platform.devices; got {short_repr(device)}"
        )
    return device


class Paper(Policy):
    """Convolutions on the GPU, everything else on the CPU (P4, core selector)."""

    name = "paper"

    def kind(self, layer: Layer) -> str:
        """Return the kind of device on which a layer is to run; any, if there is none of it."""
        return "gpu" if layer.work.kind in ("conv", "depthwise") else "cpu"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device of the layer's kind on which it would finish first."""
        devices = board.platform.of_kind(self.kind(request.graph.layers[index])) or board.platform.devices
        if len(devices) == 1:
            return devices[0]
        return min(devices, key=lambda device: board.done_s(request, index, places, device))


class GpuOnly(Paper):
    """Everything on the GPU."""

    name = "gpu_only"

    def kind(self, layer: Layer) -> str:
        """Return "gpu"."""
        return "gpu"


class CpuOnly(Paper):
    """Everything on the CPU."""

    name = "cpu_only"

    def kind(self, layer: Layer) -> str:
        """Return "cpu"."""
        return "cpu"


class EarliestFinish(Policy):
    """Each layer where the request would be done first.

    That is the device that minimises: when it is free + transfers + run time under the present load +
    optimistic time from there to the end of the request + what that takes from the other requests.
    """

    name = "earliest_finish"
    moves = True

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device on which a layer is to run."""
        devices = board.platform.devices
        if len(devices) == 1:
            return devices[0]
        tails_s = board.tails_s(request.graph, request.examples)[index]

        def done_s(device: Device, tail_s: float) -> float:
            seconds = board.run_s(request, index, places, device)
            return board.free_s(device) + seconds + board.held_up_s(device, seconds) + tail_s

        return min(zip(devices, tails_s, strict=True), key=lambda option: done_s(*option))[0]

    def tail_s(self, request: Request, index: int, device: Device, board: Board) -> float:
        """Return the seconds from a layer's end on `device` to the request's."""
        devices = board.platform.devices
        if len(devices) == 1:
            return 0.0
        return board.tails_s(request.graph, request.examples)[index][devices.index(device)]

    def rank(self, request: Request, index: int, board: Board) -> float:
        """Return how urgent a layer is among those of its request; larger goes first."""
        if len(board.platform.devices) == 1:
            return 0.0
        return max(board.tails_s(request.graph, request.examples)[index])


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (GpuOnly, CpuOnly, Paper, EarliestFinish)
}
"""The policies by name."""


def make_policy(policy: str | Policy) -> Policy:
    """Return a new policy by name, or `policy` itself."""
    if isinstance(policy, Policy):
        return policy
    return POLICIES[require_choice("policy", policy, sorted(POLICIES))]()
