"""Searching the placement of one request: HEFT, local search, branch and bound.

Pure functions of a `Problem`, for any thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from overlap_train.scheduling.graph.layers import REQUEST
from overlap_train.scheduling.policies.planning import (
    Placement,
    Plan,
    Problem,
    list_schedule,
    optimistic_costs,
    sequence_schedule,
    upward_ranks,
)

__all__ = ["exhaustive_placement", "heft_placement", "search_placement"]


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
    """The best placement and order there is, by branch and bound; of the first `max_steps`, if given."""
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


def _first_gap(taken: list[tuple[float, float]], ready_s: float, length_s: float) -> float:
    start_s = ready_s
    for begin, end in taken:
        if start_s + length_s <= begin:
            break
        start_s = max(start_s, end)
    return start_s
