"""Where a layer goes: the policies that look at the whole request.

`earliest_finish` is the default. It is dynamic: it decides when a layer becomes ready, from the queues,
transfers and load of that moment and the optimistic time of what is still to come.
"""

from __future__ import annotations

from collections import OrderedDict

from overlap_train.scheduling.board import Board
from overlap_train.scheduling.devices import Device
from overlap_train.scheduling.graph import LayerGraph
from overlap_train.scheduling.jobs import Request
from overlap_train.scheduling.planning import (
    Placement,
    Plan,
    Problem,
    exhaustive_placement,
    heft_placement,
    list_schedule,
    optimistic_costs,
    search_placement,
    upward_ranks,
)
from overlap_train.scheduling.policies import CpuOnly, GpuOnly, Paper, Policy, Waits, transfer_in_s

__all__ = ["POLICIES", "EarliestFinish", "Heft", "Oracle", "make_policy"]


class _Planned(Policy):
    """Places the whole request on admission, as if it were alone, and sticks to that."""

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}

    def plan(self, problem: Problem) -> Plan:
        raise NotImplementedError

    def admit(self, request: Request, board: Board) -> Waits:
        problem = Problem.of(request.graph, board.platform, board.costs, request.examples)
        self._plans[request.number] = self.plan(problem)
        return self._plans[request.number].waits

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        return board.platform.devices[self._plans[request.number].placement[index]]

    def rank(self, request: Request, index: int, board: Board) -> float:
        return self._plans[request.number].ranks[index]

    def release(self, request: Request) -> None:
        self._plans.pop(request.number, None)


class Heft(_Planned):
    """HEFT on each request by itself (Topcuoglu, Hariri and Wu 2002)."""

    name = "heft"

    def plan(self, problem: Problem) -> Plan:
        placement = heft_placement(problem)
        return list_schedule(problem, upward_ranks(problem), lambda index, free_s, chosen: placement[index])


class Oracle(_Planned):
    """The best placement of each request by itself, by exhaustive search; for graphs of up to ten layers."""

    name = "oracle"

    def plan(self, problem: Problem) -> Plan:
        return exhaustive_placement(problem)


class EarliestFinish(Policy):
    """Each layer where the request would be done first.

    A request that is alone follows a plan: `search_placement`, and on small graphs `exhaustive_placement`
    for as many steps as a few milliseconds allow. With company, each layer goes to the device that
    minimises: when the device is free + transfers + run time + optimistic time from there to the end
    of the request. Run times carry the present load through the cost model.
    """

    name = "earliest_finish"
    _REMEMBERED = 64
    _SEARCHED_LAYERS = 10
    _MAX_NODES = 4000

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[int, int, float], tuple[LayerGraph, list[list[float]]]] = (
            OrderedDict()
        )
        self._plans: OrderedDict[tuple[int, int, float], tuple[LayerGraph, Plan]] = OrderedDict()

    def admit(self, request: Request, board: Board) -> Waits:
        alone = board.active_requests == 1 and len(board.platform.devices) > 1
        return self._plan(request, board).waits if alone else ()

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        devices = board.platform.devices
        if len(devices) == 1:
            return devices[0]
        if board.active_requests == 1:
            return devices[self._plan(request, board).placement[index]]
        return self._earliest(request, index, places, board)

    def rank(self, request: Request, index: int, board: Board) -> float:
        if len(board.platform.devices) == 1:
            return 0.0
        if board.active_requests == 1:
            return self._plan(request, board).ranks[index]
        return max(self._table(request, board)[index])

    def _earliest(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        layer, devices = request.graph.layers[index], board.platform.devices
        tails_s = self._table(request, board)[index]

        def done_s(number: int) -> float:
            device = devices[number]
            start_s = board.free_s(device) + transfer_in_s(request, index, places, device, board)
            return start_s + board.costs.seconds(layer, device, request.examples) + tails_s[number]

        return devices[min(range(len(devices)), key=done_s)]

    def _plan(self, request: Request, board: Board) -> Plan:
        key = (id(request.graph), board.costs.version, request.examples)
        if key not in self._plans:
            first = [self._fixed(policy, request, board) for policy in (Paper(), GpuOnly(), CpuOnly())]
            problem = self._problem(request, board)
            if len(request.graph) <= self._SEARCHED_LAYERS:
                plan = exhaustive_placement(problem, max_nodes=self._MAX_NODES, first=first)
            else:
                plan = search_placement(problem, first=first)
            self._plans[key] = (request.graph, plan)
            if len(self._plans) > self._REMEMBERED:
                self._plans.popitem(last=False)
        return self._plans[key][1]

    def _table(self, request: Request, board: Board) -> list[list[float]]:
        key = (id(request.graph), board.costs.version, request.examples)
        if key not in self._tables:
            self._tables[key] = (request.graph, optimistic_costs(self._problem(request, board)))
            if len(self._tables) > self._REMEMBERED:
                self._tables.popitem(last=False)
        return self._tables[key][1]

    def _problem(self, request: Request, board: Board) -> Problem:
        return Problem.of(request.graph, board.platform, board.costs, request.examples)

    def _fixed(self, policy: Policy, request: Request, board: Board) -> Placement:
        """What `policy` would do on an idle machine."""
        numbers = {device.name: number for number, device in enumerate(board.platform.devices)}
        places: dict[int, str] = {}
        idle = Board(board.platform, board.costs)
        for index in range(len(request.graph)):
            places[index] = policy.select(request, index, places, idle).name
        return tuple(numbers[places[index]] for index in range(len(request.graph)))


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (GpuOnly, CpuOnly, Paper, EarliestFinish, Heft, Oracle)
}


def make_policy(policy: str | Policy) -> Policy:
    """A fresh policy by name, or the one given.

    Raises:
        ValueError: no policy has that name.
    """
    if isinstance(policy, Policy):
        return policy
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; the policies are {sorted(POLICIES)}")
    return POLICIES[policy]()
