"""Plans for one request on otherwise idle devices: its layers timed, and the search for their best places.

`Problem` holds the numbers (run times, edges, transfers). Pure functions of their arguments, for any thread.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from overlap_train.scheduling.costs import Costs
from overlap_train.scheduling.graph import REQUEST, Layer, LayerGraph, Platform

__all__ = [
    "Placement",
    "Plan",
    "Problem",
    "heft_placement",
    "list_schedule",
    "optimistic_costs",
    "placed_schedule",
    "search_placement",
    "upward_ranks",
]


_Times = tuple[tuple[float, ...], ...]
_Edges = tuple[tuple[tuple[int, _Times], ...], ...]
_Choose = Callable[[int, Sequence[float], Sequence[int]], int]

Placement = tuple[int, ...]
"""For each layer, the number of its device on the platform."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each layer of a request runs and which goes first where two wait for the same device."""

    placement: Placement
    ranks: tuple[float, ...]
    makespan_s: float
    whole: bool = False  # layers that exist in pieces run whole


@dataclass(frozen=True)
class Problem:
    """One request on an idle platform, in seconds."""

    run_s: tuple[tuple[float, ...], ...]  # [layers][devices]
    edges: _Edges  # for each layer, (source layer or -1, [from][to] transfer times)
    successors: tuple[tuple[int, ...], ...]
    home: int
    slots: tuple[int, ...]
    joins: Mapping[int, int] = field(default_factory=dict)  # by piece
    whole_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)  # [devices] in one piece, by join

    @classmethod
    def of(
        cls,
        graph: LayerGraph,
        platform: Platform,
        costs: Costs,
        examples: float = 1.0,
        *,
        whole: bool = False,
    ) -> Problem:
        """The figures of a request; with `whole`, pieces take no time and their layer runs in one piece."""
        devices = platform.devices

        def seconds(layer: Layer) -> tuple[float, ...]:
            return tuple(costs.seconds(layer, device, examples) for device in devices)

        left_out = set(graph.joins) if whole else set()
        nothing = (0.0,) * len(devices)
        layers = [graph.form(index, whole=whole) for index in range(len(graph))]
        edges = _edges(graph, layers, left_out, platform, examples)
        successors: list[list[int]] = [[] for _ in layers]
        for index, into in enumerate(edges):
            for source in sorted({source for source, _ in into} - {REQUEST}):
                successors[source].append(index)
        joins = {} if whole else graph.joins
        return cls(
            tuple(nothing if index in left_out else seconds(layer) for index, layer in enumerate(layers)),
            edges,
            tuple(map(tuple, successors)),
            [device.name for device in devices].index(platform.home),
            tuple(device.slots for device in devices),
            joins,
            {join: seconds(graph.form(join, whole=True)) for join in set(joins.values())},
        )

    def arrive_s(self, index: int, device: int, placement: Sequence[int]) -> float:
        """Seconds of transfers before layer `index` can run on `device`."""
        return sum(
            times[self.home if source == REQUEST else placement[source]][device]
            for source, times in self.edges[index]
        )


def _edges(
    graph: LayerGraph, layers: Sequence[Layer], left_out: Container[int], platform: Platform, examples: float
) -> _Edges:
    """Return what each layer reads and how long the transfer takes; layers left out read nothing."""
    names = [device.name for device in platform.devices]

    def between(size: float) -> _Times:
        return tuple(tuple(platform.transfer_s(a, b, size * examples) for b in names) for a in names)

    free = ((0.0,) * len(names),) * len(names)
    edges = []
    for index, layer in enumerate(layers):
        into = [] if index in left_out else [(s, between(size)) for s, size in graph.edge_bytes(layer)]
        sources = {source for source, _ in into}
        # What is left out keeps its place in the order.
        into += [(source, free) for source in graph.predecessors[index] if source not in sources]
        edges.append(tuple(into))
    return tuple(edges)


def upward_ranks(problem: Problem) -> list[float]:
    """Mean seconds from the start of each layer to the end of the request (HEFT, equation 8)."""
    devices = len(problem.slots)
    into = [[(source, _mean_transfer(times)) for source, times in edges] for edges in problem.edges]
    ranks = [0.0] * len(problem.run_s)
    for index in range(len(ranks) - 1, -1, -1):
        tail_s = max(
            (
                sum(s for source, s in into[after] if source == index) + ranks[after]
                for after in problem.successors[index]
            ),
            default=0.0,
        )
        ranks[index] = sum(problem.run_s[index]) / devices + tail_s
    return ranks


def optimistic_costs(problem: Problem) -> list[list[float]]:
    """`[layers][devices]` seconds from the end of a layer on a device to the end of the request.

    This is the optimistic cost table of PEFT (Arabnejad and Barbosa 2014): every later layer is assumed to
    start at once on its best device, which is exact for chains on idle devices. Pieces share the slots of a
    device, or are left out if the layer is done sooner whole.
    """
    devices = range(len(problem.slots))
    table = [[0.0 for _ in devices] for _ in problem.run_s]
    counts = Counter(problem.joins.values())

    def least_s(index: int, here: int, after: int, target: int, run_s: Sequence[float]) -> float:
        return min(
            run_s[there] + table[target][there] + _edge_s(problem, index, after, here, there)
            for there in devices
        )

    def after_s(index: int, here: int, after: int) -> float:
        join = problem.joins.get(after)
        if join is None:
            return least_s(index, here, after, after, problem.run_s[after])
        rounds = [-(-counts[join] // slots) for slots in problem.slots]
        in_pieces = [s * n for s, n in zip(problem.run_s[after], rounds, strict=True)]
        return min(
            least_s(index, here, after, after, in_pieces),
            least_s(index, here, after, join, problem.whole_s[join]),
        )

    for index in range(len(table) - 1, -1, -1):
        for here in devices:
            table[index][here] = max(
                (after_s(index, here, after) for after in problem.successors[index]), default=0.0
            )
    return table


def list_schedule(problem: Problem, ranks: Sequence[float], choose: _Choose) -> Plan:
    """Run the request without idling a device that has a ready layer; larger ranks go first.

    `choose(index, free_s, placement)` names the device of a layer when it becomes ready, given the
    seconds from now at which each device begins to be free.
    """
    machine = _Machine(problem, ranks)
    missing = [len({source for source, _ in edges} - {REQUEST}) for edges in problem.edges]
    ready = [index for index, count in enumerate(missing) if count == 0]
    while True:
        for index in sorted(ready, key=lambda i: -ranks[i]):
            machine.put(index, choose(index, machine.free_s(), machine.placement))
        machine.start()
        ended = machine.next_end()
        if ended is None:
            return Plan(tuple(machine.placement), tuple(ranks), machine.now_s)
        ready = []
        for after in problem.successors[ended]:
            missing[after] -= 1
            if missing[after] == 0:
                ready.append(after)


def placed_schedule(problem: Problem, placement: Sequence[int], ranks: Sequence[float]) -> Plan:
    """Return `list_schedule` with each layer on its device of `placement`."""
    return list_schedule(problem, ranks, lambda index, free_s, places: placement[index])


class _Machine:
    """The devices of a problem, with what waits for each by rank and what runs on it."""

    def __init__(self, problem: Problem, ranks: Sequence[float]) -> None:
        self._problem, self._ranks = problem, ranks
        self._devices = range(len(problem.slots))
        self._queues: list[list[tuple[float, int]]] = [[] for _ in self._devices]
        self._waiting_s = [0.0 for _ in self._devices]
        self._running: list[list[float]] = [[] for _ in self._devices]
        self._events: list[tuple[float, int, int]] = []
        self.placement = [0] * len(problem.run_s)
        self.now_s = 0.0

    def free_s(self) -> list[float]:
        """Return the seconds from now at which each device begins to be free."""
        return [self._free_s(device, slots) for device, slots in enumerate(self._problem.slots)]

    def _free_s(self, device: int, slots: int) -> float:
        running = self._running[device]
        if len(running) + len(self._queues[device]) < slots:
            return 0.0
        return (sum(end_s - self.now_s for end_s in running) + self._waiting_s[device]) / slots

    def put(self, index: int, device: int) -> None:
        """Let a layer wait for a device."""
        self.placement[index] = device
        heappush(self._queues[device], (-self._ranks[index], index))
        self._waiting_s[device] += self._problem.run_s[index][device]

    def start(self) -> None:
        """Begin what can begin now."""
        for device, queue in enumerate(self._queues):
            while queue and len(self._running[device]) < self._problem.slots[device]:
                _, index = heappop(queue)
                run_s = self._problem.run_s[index][device]
                self._waiting_s[device] -= run_s
                end_s = self.now_s + self._problem.arrive_s(index, device, self.placement) + run_s
                self._running[device].append(end_s)
                heappush(self._events, (end_s, index, device))

    def next_end(self) -> int | None:
        """Go on to where the next layer ends and return it; None if nothing runs."""
        if not self._events:
            return None
        self.now_s, index, device = heappop(self._events)
        self._running[device].remove(self.now_s)
        return index


def _mean_transfer(times: tuple[tuple[float, ...], ...]) -> float:
    count = len(times) * (len(times) - 1)
    return sum(map(sum, times)) / count if count else 0.0


def _edge_s(problem: Problem, source: int, target: int, here: int, there: int) -> float:
    return sum(times[here][there] for port, times in problem.edges[target] if port == source)


def heft_placement(problem: Problem) -> Placement:
    """Heterogeneous Earliest Finish Time with insertion (Topcuoglu, Hariri and Wu 2002)."""
    ranks = upward_ranks(problem)
    order = sorted(range(len(ranks)), key=lambda index: -ranks[index])
    busy: list[list[list[tuple[float, float]]]] = [[[] for _ in range(slots)] for slots in problem.slots]
    placement, end_s = [0] * len(ranks), [0.0] * len(ranks)
    for index in order:
        best: tuple[float, float, int, int] | None = None
        ready_s = max((end_s[source] for source, _ in problem.edges[index] if source != REQUEST), default=0.0)
        for device, slots in enumerate(busy):
            length_s = problem.run_s[index][device] + problem.arrive_s(index, device, placement)
            for slot, intervals in enumerate(slots):
                start_s = _first_gap(intervals, ready_s, length_s)
                if best is None or start_s + length_s < best[0]:
                    best = (start_s + length_s, start_s, device, slot)
        if best is not None:
            end_s[index], start_s, placement[index], slot = best
            intervals = busy[placement[index]][slot]
            intervals.append((start_s, end_s[index]))
            intervals.sort()
    return tuple(placement)


def search_placement(problem: Problem, *, first: Sequence[Placement] = (), max_steps: int = 300) -> Plan:
    """The best of several heuristics, improved by at most `max_steps` trials.

    The heuristics are `first`, each device alone, HEFT, and earliest finish with the optimistic costs.
    The improvement moves one layer, or one layer together with a neighbour, and exchanges the ranks of
    two layers, while that helps. On graphs of a dozen layers it takes about ten milliseconds.
    """
    ranks, size, devices = upward_ranks(problem), len(problem.run_s), range(len(problem.slots))
    table = optimistic_costs(problem)

    def optimistic(index: int, free_s: Sequence[float], placement: Sequence[int]) -> int:
        return min(
            devices,
            key=lambda d: (
                free_s[d] + problem.arrive_s(index, d, placement) + problem.run_s[index][d] + table[index][d]
            ),
        )

    options = [*first, heft_placement(problem), *(((device,) * size) for device in devices)]
    plans = [
        list_schedule(problem, ranks, optimistic),
        *(placed_schedule(problem, option, ranks) for option in options),
    ]
    best, trials = min(plans, key=lambda plan: plan.makespan_s), 0
    improved = True
    while improved:
        improved = False
        for placement, order in _neighbours(problem, best):
            option, trials = placed_schedule(problem, placement, order), trials + 1
            improved = option.makespan_s < best.makespan_s * (1 - 1e-9)
            if improved:
                best = option
            if improved or trials >= max_steps:
                break
        if trials >= max_steps:
            break
    return best


def _neighbours(problem: Problem, plan: Plan) -> Iterator[tuple[Sequence[int], Sequence[float]]]:
    size = len(plan.placement)
    groups = [(i,) for i in range(size)] + [
        (i, after) for i in range(size) for after in problem.successors[i]
    ]
    for group in groups:
        for device in range(len(problem.slots)):
            placement = list(plan.placement)
            for index in group:
                placement[index] = device
            yield placement, plan.ranks
    for left, right in itertools.combinations(range(size), 2):
        ranks = list(plan.ranks)
        ranks[left], ranks[right] = ranks[right], ranks[left]
        yield plan.placement, ranks


def _first_gap(intervals: list[tuple[float, float]], ready_s: float, length_s: float) -> float:
    start_s = ready_s
    for begin, end in intervals:
        if start_s + length_s <= begin:
            break
        start_s = max(start_s, end)
    return start_s
