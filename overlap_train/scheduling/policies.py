"""Where a layer goes: the policies that look at the whole request.

`earliest_finish` is the default. It is dynamic: it decides when a layer becomes ready, from the queues,
transfers and load of that moment and the optimistic time of what is still to come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from overlap_train._support.arguments import require_choice
from overlap_train.scheduling.graph import REQUEST, Device, LayerGraph, Request
from overlap_train.scheduling.planning import (
    Placement,
    Plan,
    Problem,
    optimistic_costs,
    search_placement,
)
from overlap_train.scheduling.policy import Board, CpuOnly, GpuOnly, Paper, Policy

__all__ = ["POLICIES", "EarliestFinish", "make_policy"]


T = TypeVar("T")


class EarliestFinish(Policy):
    """Each layer where the request would be done first.

    A request of up to two dozen segments that is alone follows a plan of `search_placement`. Otherwise each
    layer goes to the device that minimises: when the device is free + transfers + run time + optimistic
    time from there to the end of the request + what that takes from the other requests. Run times carry the
    present load through the cost model; plans and optimistic times are made anew when it has changed, but not
    more than a few times a second. A waiting layer moves to a device that has become idle if it would be done
    sooner there.
    """

    name = "earliest_finish"
    _MOST_PLANNED_LAYERS = 24
    _LIFETIME_S = 0.25

    def __init__(self) -> None:
        self._plans: _Cache[Plan] = _Cache(self._LIFETIME_S)
        self._tables: _Cache[list[list[float]]] = _Cache(self._LIFETIME_S)
        self._plan_of: dict[int, Plan] = {}  # by the number of a request

    def prepare(self, graph: LayerGraph, board: Board) -> None:
        """Plan for a graph before its first request comes."""
        request = Request(REQUEST, graph)
        if len(board.platform.devices) > 1:
            self._table(request, board)
            if len(graph) <= self._MOST_PLANNED_LAYERS:
                self._plans.get(request, board, lambda: self._plan(request, board))

    def admit(self, request: Request, board: Board) -> None:
        """Take in a request, with a plan if it is alone."""
        several = len(board.platform.devices) > 1
        if several and board.active_requests == 1 and len(request.graph) <= self._MOST_PLANNED_LAYERS:
            plan = self._plans.get(request, board, lambda: self._plan(request, board))
            self._plan_of[request.number] = plan

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device on which a layer is to run."""
        devices = board.platform.devices
        if len(devices) == 1:
            return devices[0]
        plan = self._current_plan(request, board)
        if plan is not None:
            return devices[plan.placement[index]]
        tails_s = self._table(request, board)[index]

        def done_s(device: Device, tail_s: float) -> float:
            seconds = board.run_s(request, index, places, device)
            return board.free_s(device) + seconds + board.held_up_s(device, seconds) + tail_s

        return min(zip(devices, tails_s, strict=True), key=lambda option: done_s(*option))[0]

    def _current_plan(self, request: Request, board: Board) -> Plan | None:
        """Return the plan of a request that has been alone since it was made; give it up otherwise."""
        if board.active_requests > 1:
            self._plan_of.pop(request.number, None)
        return self._plan_of.get(request.number)

    def runs_whole(self, request: Request, index: int, places: dict[int, str], board: Board) -> bool:
        """Whether a layer that exists in pieces is to run whole."""
        plan = self._current_plan(request, board)
        if plan is not None:
            return plan.whole
        return super().runs_whole(request, index, places, board)

    def may_move(self, request: Request) -> bool:
        """Whether another device may take a layer that waits."""
        return request.number not in self._plan_of

    def tail_s(self, request: Request, index: int, device: Device, board: Board) -> float:
        """Return the seconds from a layer's end on `device` to the request's."""
        devices = board.platform.devices
        return self._table(request, board)[index][devices.index(device)] if len(devices) > 1 else 0.0

    def rank(self, request: Request, index: int, board: Board) -> float:
        """Return how urgent a layer is among those of its request; larger goes first."""
        plan = self._current_plan(request, board)
        if plan is not None:
            return plan.ranks[index]
        return 0.0 if len(board.platform.devices) == 1 else max(self._table(request, board)[index])

    def release(self, request: Request) -> None:
        """Forget a request that has ended."""
        self._plan_of.pop(request.number, None)

    def _table(self, request: Request, board: Board) -> list[list[float]]:
        return self._tables.get(request, board, lambda: optimistic_costs(_problem(request, board)))

    def _plan(self, request: Request, board: Board) -> Plan:
        def plan(problem: Problem, whole: bool) -> Plan:
            policies = (Paper(), GpuOnly(), CpuOnly())
            first = [_fixed(policy, request, board, whole=whole) for policy in policies]
            return search_placement(problem, first=first)

        return _better_form(request, board, plan)


class _Cache(Generic[T]):
    """One value for each graph and batch, made anew when the costs have changed and it is old enough."""

    _MOST_ENTRIES = 64

    def __init__(self, lifetime_s: float) -> None:
        self._lifetime_s = lifetime_s
        # The graph is stored with the value, so that no other graph gets its id.
        self._entries: OrderedDict[tuple[int, float], tuple[LayerGraph, int, float, T]] = OrderedDict()

    def get(self, request: Request, board: Board, make: Callable[[], T]) -> T:
        key = (id(request.graph), request.examples)
        entry = self._entries.get(key)
        version = board.costs.version
        if entry is None or (entry[1] != version and board.now_s >= entry[2] + self._lifetime_s):
            entry = self._entries[key] = (request.graph, version, board.now_s, make())
            if len(self._entries) > self._MOST_ENTRIES:
                self._entries.popitem(last=False)
        return entry[3]


def _problem(request: Request, board: Board, *, whole: bool = False) -> Problem:
    return Problem.of(request.graph, board.platform, board.costs, request.examples, whole=whole)


def _better_form(request: Request, board: Board, plan: Callable[[Problem, bool], Plan]) -> Plan:
    """Return the shorter of two plans, with all layers in pieces and with all whole."""
    in_pieces = plan(_problem(request, board), False)
    if not request.graph.joins:
        return in_pieces
    whole = plan(_problem(request, board, whole=True), True)
    return in_pieces if in_pieces.makespan_s <= whole.makespan_s else replace(whole, whole=True)


def _fixed(policy: Policy, request: Request, board: Board, *, whole: bool) -> Placement:
    """Return where `policy` would place a request on an idle machine."""
    request = replace(request, whole=dict.fromkeys(request.graph.joins.values(), whole))
    numbers = {device.name: number for number, device in enumerate(board.platform.devices)}
    places: dict[int, str] = {}
    idle = Board(board.platform, board.costs)
    for index in range(len(request.graph)):
        places[index] = policy.select(request, index, places, idle).name
    return tuple(numbers[places[index]] for index in range(len(request.graph)))


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (GpuOnly, CpuOnly, Paper, EarliestFinish)
}


def make_policy(policy: str | Policy) -> Policy:
    """Return a new policy by name, or `policy` itself."""
    if isinstance(policy, Policy):
        return policy
    return POLICIES[require_choice("policy", policy, sorted(POLICIES))]()
