"""The search for a placement: never worse than what it begins with, and the optimum on small graphs."""

from __future__ import annotations

import itertools
import random

import pytest

from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import LayerGraph, Port
from overlap_train.scheduling.planning import (
    Problem,
    exhaustive_placement,
    heft_placement,
    search_placement,
    sequence_schedule,
)
from tests.scheduling.graphs import layer, random_costs, random_graph, random_platform

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


def test_heft_puts_a_layer_into_a_gap():
    """The third layer fits beside the long one of the first chain, before what waits for it."""
    graph = LayerGraph(
        [layer("long", Port(-1)), layer("after", Port(0)), layer("short", Port(-1))], [Port(1), Port(2)]
    )
    seconds = {"long": (9.0, 3.0), "after": (1.0, 9.0), "short": (1.0, 9.0)}
    costs = FixedCosts(lambda x, d: seconds[x.name][d.kind == "gpu"])
    problem = Problem.of(graph, TWO, costs)
    assert heft_placement(problem) == (1, 0, 0)


def test_heft_begins_no_layer_before_what_it_reads():
    """The GPU is free sooner than the first layer ends, which is of no use to the one behind it."""
    layers = [layer("first", Port(-1)), layer("behind", Port(0)), layer("other", Port(-1))]
    graph = LayerGraph(layers, [Port(1), Port(2)])
    seconds = {"first": (5.0, 50.0), "behind": (2.0, 3.0), "other": (50.0, 1.0)}
    costs = FixedCosts(lambda x, d: seconds[x.name][d.kind == "gpu"])
    assert heft_placement(Problem.of(graph, TWO, costs)) == (0, 0, 1)


def test_what_would_take_too_long_is_refused_or_ended():
    with pytest.raises(ValueError, match="up to 3 layers, got 4; use heft"):
        exhaustive_placement(side_by_side(4), max_layers=3)
    ended = exhaustive_placement(random_problem(1, 8), max_steps=0)
    assert ended.makespan_s == search_placement(random_problem(1, 8)).makespan_s


def test_a_search_of_no_trials_is_its_best_beginning():
    problem = random_problem(3, 10)
    assert search_placement(problem, max_steps=0).makespan_s >= search_placement(problem).makespan_s
