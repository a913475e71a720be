"""Plans of one request: their times, and a search that finds the optimum of small graphs."""

from __future__ import annotations

import itertools
import random

import pytest

from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import LayerGraph, Port
from overlap_train.scheduling.planning import (
    Problem,
    exhaustive_placement,
    heft_placement,
    list_schedule,
    optimistic_costs,
    search_placement,
    sequence_schedule,
    upward_ranks,
)
from tests.scheduling.graphs import CORES, cut, layer, random_costs, random_graph, random_platform, times

LINKS = {("cpu", "gpu"): Transfer(0.25, 1e6), ("gpu", "cpu"): Transfer(0.5, 1e6)}
LINKED = Platform((Device("cpu"), Device("gpu", "gpu")), LINKS)
SECONDS = {"a": (4.0, 1.0), "b": (2.0, 3.0), "c": (1.0, 1.0)}


def fork():
    """`a` and `b` read the request, `c` both of them."""
    layers = [layer("a", Port(-1), outputs=(10**6,)), layer("b", Port(-1)), layer("c", Port(0), Port(1))]
    return LayerGraph(layers, [Port(2)])


def problem(platform=LINKED, examples=1.0):
    costs = FixedCosts(lambda layer, device: SECONDS[layer.name][device.kind == "gpu"])
    return Problem.of(fork(), platform, costs, examples)


def test_optimistic_costs_know_both_forms_and_that_pieces_share_a_device():
    whole_s = optimistic_costs(Problem.of(cut(), CORES, FixedCosts(times(0.01, 1.0))))[0]
    assert whole_s == pytest.approx([0.01 + 1e-6] * 2)
    pieces_s = optimistic_costs(Problem.of(cut(), CORES, FixedCosts(times(1.0, 0.02))))[0]
    assert pieces_s == pytest.approx([1.1 * 0.02 / 4 + 2e-6] * 2)


def test_the_figures_of_a_request_are_those_of_costs_and_links():
    made = problem()
    assert made.run_s == ((4.0, 1.0), (2.0, 3.0), (1.0, 1.0))
    assert made.successors == ((2,), (2,), ())
    assert (made.home, made.slots) == (0, (1, 1))
    assert made.arrive_s(2, 0, (1, 0)) == pytest.approx(0.5 + 1.0)
    assert made.arrive_s(2, 1, (1, 1)) == 0.0
    assert made.arrive_s(0, 1, ()) == 0.25  # from where the request's inputs are
    assert problem(examples=2.0).arrive_s(2, 0, (1, 0)) == pytest.approx(0.5 + 2.0)


def test_ranks_fall_towards_the_end_and_count_transfers():
    first, second, last = upward_ranks(problem())
    assert first > second > last > 0
    free = Platform((Device("cpu"), Device("gpu", "gpu")))
    assert upward_ranks(problem(free))[0] < first


def test_optimistic_costs_are_the_shortest_way_to_the_end():
    table = optimistic_costs(problem())
    assert table[2] == [0.0, 0.0]
    assert table[0] == pytest.approx([1.0, 1.0])
    in_one_place = optimistic_costs(problem(Platform((Device("cpu"), Device("cpu2")))))
    assert in_one_place[0] == pytest.approx([1.0, 1.0])


def test_a_list_schedule_idles_no_device_that_has_a_ready_layer():
    seen = []

    def choose(index, free_s, placement):
        seen.append((index, list(free_s)))
        return (1, 0, 0)[index]

    plan = list_schedule(problem(), (3.0, 2.0, 1.0), choose)
    assert plan.placement == (1, 0, 0)
    assert seen[0] == (0, [0.0, 0.0])
    assert seen[1] == (1, [0.0, 1.0])  # the GPU is to run `a`
    assert plan.makespan_s == pytest.approx(max(0.25 + 1.0, 2.0) + 1.5 + 1.0)


TWO = Platform((Device("cpu"), Device("gpu", "gpu")))


def random_problem(seed, size):
    rng = random.Random(seed)
    graph = random_graph(rng, size)
    return Problem.of(graph, random_platform(rng), FixedCosts(random_costs(rng, graph)))


def side_by_side(count, *, cpu_s=1.0, gpu_s=1.0):
    layers = [layer(str(number), Port(-1)) for number in range(count)]
    graph = LayerGraph(layers, [Port(number) for number in range(count)])
    return Problem.of(graph, TWO, FixedCosts(lambda x, d: gpu_s if d.kind == "gpu" else cpu_s))


def brute_force(problem):
    """Returns the shortest makespan over all placements and orders of beginning."""
    size = len(problem.run_s)
    orders = [[float(size - place) for place in order] for order in itertools.permutations(range(size))]
    placements = itertools.product(range(len(problem.slots)), repeat=size)
    return min(
        sequence_schedule(problem, order, placement).makespan_s
        for placement in placements
        for order in orders
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_exhaustive_search_finds_the_optimum(seed):
    problem = random_problem(seed, 4)
    assert exhaustive_placement(problem).makespan_s == pytest.approx(brute_force(problem))


@pytest.mark.parametrize("seed", range(4))
def test_a_search_is_no_worse_than_what_it_begins_with(seed):
    problem = random_problem(seed, 12)
    size, devices = len(problem.run_s), len(problem.slots)
    first = tuple(random.Random(seed).randrange(devices) for _ in range(size))
    found = search_placement(problem, first=[first])
    ranks = [float(size - index) for index in range(size)]
    assert found.makespan_s <= sequence_schedule(problem, ranks, first).makespan_s + 1e-12
    for device in range(devices):
        alone = sequence_schedule(problem, ranks, (device,) * size).makespan_s
        assert found.makespan_s <= alone + 1e-12


def test_independent_layers_are_shared_out():
    assert sorted(heft_placement(side_by_side(4))) == [0, 0, 1, 1]
    assert exhaustive_placement(side_by_side(4)).makespan_s == 2.0
    assert heft_placement(side_by_side(3, cpu_s=9.0)) == (1, 1, 1)


# Seconds of three layers, of which the second reads the first, on CPU and GPU; and where they belong.
HEFT = {
    "a gap beside the long one": ({"long": (9, 3), "after": (1, 9), "short": (1, 9)}, (1, 0, 0)),
    "no use of a GPU that is free too soon": (
        {"first": (5, 50), "behind": (2, 3), "other": (50, 1)},
        (0, 0, 1),
    ),
}


@pytest.mark.parametrize(("seconds", "placement"), HEFT.values(), ids=HEFT)
def test_heft_fills_gaps_and_begins_no_layer_before_what_it_reads(seconds, placement):
    layers = [layer(name, Port(source)) for name, source in zip(seconds, (-1, 0, -1), strict=True)]
    graph = LayerGraph(layers, [Port(1), Port(2)])
    costs = FixedCosts(lambda x, d: float(seconds[x.name][d.kind == "gpu"]))
    assert heft_placement(Problem.of(graph, TWO, costs)) == placement


def test_what_would_take_too_long_is_refused_or_ended():
    with pytest.raises(ValueError, match="up to 3 layers, got 4; use heft"):
        exhaustive_placement(side_by_side(4), max_layers=3)
    ended = exhaustive_placement(random_problem(1, 8), max_steps=0)
    assert ended.makespan_s == search_placement(random_problem(1, 8)).makespan_s
