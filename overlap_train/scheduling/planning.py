"""Plans for one request: its layers placed and timed on otherwise idle devices.

`Problem` holds the numbers (run times, edges, transfers); `list_schedule`, `optimistic_costs`,
`heft_placement`, `exhaustive_placement` and `search_placement` work on it. Pure functions of their
arguments, for any thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from overlap_train.scheduling.costs import Costs
from overlap_train.scheduling.devices import Platform
from overlap_train.scheduling.graph import REQUEST, LayerGraph

__all__ = [
    "Placement",
    "Plan",
    "Problem",
    "exhaustive_placement",
    "heft_placement",
    "list_schedule",
    "optimistic_costs",
    "search_placement",
    "sequence_schedule",
    "upward_ranks",
]

_Choose = Callable[[int, Sequence[float], Sequence[int]], int]

Placement = tuple[int, ...]
"""For each layer, the number of its device on the platform."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each layer of a request runs and which goes first where two wait for the same device.

    Attributes:
        placement: the device of each layer.
        ranks: of each layer; the larger goes first.
        makespan_s: how long the request takes by this plan, alone on idle devices.
        waits: pairs (before, after) of layers that have no edge between them, where the second is held
            until the first is done: a slot at times does best to stay idle for a critical layer.
    """

    placement: Placement
    ranks: tuple[float, ...]
    makespan_s: float
    waits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Problem:
    """One request on an idle platform, in seconds.

    Attributes:
        run_s: `[layers][devices]` run times.
        edges: for each layer, (source layer or -1, `[from][to]` transfer times).
        successors: of each layer.
        home: the number of the device that holds the request's inputs.
        slots: of each device.
    """

    run_s: tuple[tuple[float, ...], ...]
    edges: tuple[tuple[tuple[int, tuple[tuple[float, ...], ...]], ...], ...]
    successors: tuple[tuple[int, ...], ...]
    home: int
    slots: tuple[int, ...]

    @classmethod
    def of(cls, graph: LayerGraph, platform: Platform, costs: Costs, examples: float = 1.0) -> Problem:
        devices = platform.devices
        names = [device.name for device in devices]
        run_s = tuple(
            tuple(costs.seconds(layer, device, examples) for device in devices) for layer in graph.layers
        )

        def between(size: float) -> tuple[tuple[float, ...], ...]:
            return tuple(tuple(platform.transfer_s(a, b, size * examples) for b in names) for a in names)

        edges = tuple(
            tuple((source, between(size)) for source, size in graph.edge_bytes(index))
            for index in range(len(graph))
        )
        return cls(
            run_s, edges, graph.successors, names.index(platform.home), tuple(d.slots for d in devices)
        )

    def arrive_s(self, index: int, device: int, placement: Sequence[int]) -> float:
        """Seconds of transfers before layer `index` can run on `device`."""
        return sum(
            times[self.home if source == REQUEST else placement[source]][device]
            for source, times in self.edges[index]
        )


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

    Every later layer is taken to run on its best device at once: the optimistic cost table of PEFT
    (Arabnejad and Barbosa 2014), exact for chains on idle devices.
    """
    devices = range(len(problem.slots))
    table = [[0.0 for _ in devices] for _ in problem.run_s]
    for index in range(len(table) - 1, -1, -1):
        for here in devices:
            table[index][here] = max(
                (
                    min(
                        table[after][there]
                        + problem.run_s[after][there]
                        + _edge_s(problem, index, after, here, there)
                        for there in devices
                    )
                    for after in problem.successors[index]
                ),
                default=0.0,
            )
    return table


def list_schedule(problem: Problem, ranks: Sequence[float], choose: _Choose) -> Plan:
    """Runs the request without idling a device that has a ready layer; larger ranks go first.

    `choose(index, free_s, placement)` names the device of a layer when it becomes ready, given the
    seconds from now at which each device begins to be free.
    """
    devices = range(len(problem.slots))
    placement = [0] * len(problem.run_s)
    missing = [len({source for source, _ in edges} - {REQUEST}) for edges in problem.edges]
    queues: list[list[tuple[float, int, int]]] = [[] for _ in devices]
    waiting_s = [0.0 for _ in devices]
    running: list[list[float]] = [[] for _ in devices]
    events: list[tuple[float, int, int]] = []
    now = 0.0

    def free_s() -> list[float]:
        left = [sum(end - now for end in running[d]) + waiting_s[d] for d in devices]
        return [
            0.0 if len(running[d]) < problem.slots[d] and not queues[d] else left[d] / problem.slots[d]
            for d in devices
        ]

    def release(ready: list[int]) -> None:
        for index in sorted(ready, key=lambda i: -ranks[i]):
            device = choose(index, free_s(), placement)
            placement[index] = device
            heappush(queues[device], (-ranks[index], index, device))
            waiting_s[device] += problem.run_s[index][device]

    def start() -> None:
        for device in devices:
            while queues[device] and len(running[device]) < problem.slots[device]:
                _, index, _ = heappop(queues[device])
                waiting_s[device] -= problem.run_s[index][device]
                end = now + problem.arrive_s(index, device, placement) + problem.run_s[index][device]
                running[device].append(end)
                heappush(events, (end, index, device))

    release([index for index, count in enumerate(missing) if count == 0])
    start()
    while events:
        now, index, device = heappop(events)
        running[device].remove(now)
        ready = []
        for after in problem.successors[index]:
            missing[after] -= 1
            if missing[after] == 0:
                ready.append(after)
        release(ready)
        start()
    return Plan(tuple(placement), tuple(ranks), now)


def sequence_schedule(problem: Problem, ranks: Sequence[float], placement: Sequence[int]) -> Plan:
    """Begins layers strictly by rank (after those that they read), each in the slot that is free first."""
    slots = [[(0.0, REQUEST)] * count for count in problem.slots]
    missing = [len({source for source, _ in edges} - {REQUEST}) for edges in problem.edges]
    ready = [(-ranks[index], index) for index, count in enumerate(missing) if count == 0]
    heapify(ready)
    start_s, end_s, waits = [0.0] * len(ranks), [0.0] * len(ranks), []
    while ready:
        _, index = heappop(ready)
        device = placement[index]
        slot = min(range(len(slots[device])), key=lambda i: slots[device][i])
        free_s, last = slots[device][slot]
        sources = {source for source, _ in problem.edges[index]}
        inputs_s = max((end_s[source] for source in sources if source != REQUEST), default=0.0)
        start_s[index] = max(free_s, inputs_s)
        end_s[index] = (
            start_s[index] + problem.arrive_s(index, device, placement) + problem.run_s[index][device]
        )
        slots[device][slot] = (end_s[index], index)
        if last != REQUEST and last not in sources:
            waits.append((last, index))
        for after in problem.successors[index]:
            missing[after] -= 1
            if missing[after] == 0:
                heappush(ready, (-ranks[after], after))
    return Plan(tuple(placement), tuple(-start for start in start_s), max(end_s), tuple(waits))


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
            for slot, taken in enumerate(slots):
                start_s = _first_gap(taken, ready_s, length_s)
                if best is None or start_s + length_s < best[0]:
                    best = (start_s + length_s, start_s, device, slot)
        if best is not None:
            end_s[index], start_s, placement[index], slot = best
            taken = busy[placement[index]][slot]
            taken.append((start_s, end_s[index]))
            taken.sort()
    return tuple(placement)


def exhaustive_placement(
    problem: Problem, *, max_layers: int = 10, max_steps: int | None = None, first: Sequence[Placement] = ()
) -> Plan:
    """The best placement and order there is, by branch and bound over all of them.

    Args:
        problem: what to plan.
        max_layers: the largest graph that is accepted.
        max_steps: stop after so many steps with the best found till then; None for never.
        first: see `search_placement`, whose answer the search begins with.

    Raises:
        ValueError: more than `max_layers` layers, which would take too long.
    """
    size = len(problem.run_s)
    if size > max_layers:
        raise ValueError(f"oracle searches graphs of up to {max_layers} layers, got {size}; use heft")
    tails_s = [min(row) for row in problem.run_s]
    for index in range(size - 1, -1, -1):
        tails_s[index] += max((tails_s[after] for after in problem.successors[index]), default=0.0)
    before = [tuple({source for source, _ in edges} - {REQUEST}) for edges in problem.edges]
    best, steps = search_placement(problem, first=first), itertools.count()
    placement, start_s, end_s = [0] * size, [0.0] * size, [0.0] * size
    free_s = [[0.0] * slots for slots in problem.slots]

    def visit(done: int, latest_s: float) -> None:
        nonlocal best
        if max_steps is not None and next(steps) > max_steps:
            return
        if done == (1 << size) - 1:
            if latest_s < best.makespan_s:
                best = sequence_schedule(problem, [-start for start in start_s], placement)
            return
        for index in range(size):
            if done >> index & 1 or any(not done >> source & 1 for source in before[index]):
                continue
            ready_s = max((end_s[source] for source in before[index]), default=0.0)
            if ready_s + tails_s[index] >= best.makespan_s:
                return
            for device, slots in enumerate(free_s):
                slot = min(range(len(slots)), key=slots.__getitem__)
                was_s, begin_s = slots[slot], max(ready_s, slots[slot])
                finish_s = begin_s + problem.arrive_s(index, device, placement) + problem.run_s[index][device]
                if finish_s + tails_s[index] - min(problem.run_s[index]) < best.makespan_s:
                    placement[index], start_s[index], end_s[index] = device, begin_s, finish_s
                    slots[slot] = finish_s
                    visit(done | 1 << index, max(latest_s, finish_s))
                    slots[slot] = was_s

    visit(0, 0.0)
    return best


def search_placement(problem: Problem, *, first: Sequence[Placement] = (), max_steps: int = 300) -> Plan:
    """The best of several heuristics, improved by at most `max_steps` trials.

    The heuristics are `first`, each device alone, HEFT, and earliest finish with the optimistic costs.
    The improvement moves one layer, or one layer together with a neighbour, and exchanges the ranks of
    two layers, while that helps. On graphs of a dozen layers it takes some ten milliseconds.
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
        *(_scheduled(problem, option, ranks) for option in options),
    ]
    best, trials = min(plans, key=lambda plan: plan.makespan_s), 0
    improved = True
    while improved:
        improved = False
        for placement, order in _neighbours(problem, best):
            option, trials = sequence_schedule(problem, order, placement), trials + 1
            improved = option.makespan_s < best.makespan_s * (1 - 1e-9)
            if improved:
                best = option
            if improved or trials >= max_steps:
                break
        if trials >= max_steps:
            break
    return best


def _scheduled(problem: Problem, placement: Sequence[int], ranks: Sequence[float]) -> Plan:
    return list_schedule(problem, ranks, lambda index, free_s, chosen: placement[index])


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


def _mean_transfer(times: tuple[tuple[float, ...], ...]) -> float:
    count = len(times) * (len(times) - 1)
    return sum(map(sum, times)) / count if count else 0.0


def _edge_s(problem: Problem, source: int, target: int, here: int, there: int) -> float:
    return sum(times[here][there] for port, times in problem.edges[target] if port == source)


def _first_gap(taken: list[tuple[float, float]], ready_s: float, length_s: float) -> float:
    start_s = ready_s
    for begin, end in taken:
        if start_s + length_s <= begin:
            break
        start_s = max(start_s, end)
    return start_s
