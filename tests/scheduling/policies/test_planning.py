"""Plans of one request: what its layers take, in which order they run, and when the last one ends."""

from __future__ import annotations

import pytest

from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import LayerGraph, Port
from overlap_train.scheduling.planning import (
    Problem,
    exhaustive_placement,
    list_schedule,
    optimistic_costs,
    sequence_schedule,
    upward_ranks,
)
from tests.scheduling.graphs import CORES, cut, layer, times

LINKS = {("cpu", "gpu"): Transfer(0.25, 1e6), ("gpu", "cpu"): Transfer(0.5, 1e6)}
TWO = Platform((Device("cpu"), Device("gpu", "gpu")), LINKS)
SECONDS = {"a": (4.0, 1.0), "b": (2.0, 3.0), "c": (1.0, 1.0)}


def fork():
    """`a` and `b` read the request, `c` both of them."""
    layers = [layer("a", Port(-1), outputs=(10**6,)), layer("b", Port(-1)), layer("c", Port(0), Port(1))]
    return LayerGraph(layers, [Port(2)])


def problem(platform=TWO, examples=1.0):
    costs = FixedCosts(lambda layer, device: SECONDS[layer.name][device.kind == "gpu"])
    return Problem.of(fork(), platform, costs, examples)


def test_what_is_left_out_takes_no_time_in_a_plan():
    graph, costs = cut(), FixedCosts(times(0.01, 0.1))
    in_form = {whole: Problem.of(graph, CORES, costs, whole=whole) for whole in (False, True)}
    assert exhaustive_placement(in_form[True]).makespan_s == pytest.approx(0.01 + 2e-6)
    assert exhaustive_placement(in_form[False]).makespan_s > 0.0109
    assert in_form[True].run_s[1:5] == ((0.0, 0.0),) * 4


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


def test_one_after_another_the_larger_rank_goes_first():
    for ranks, makespan in (((2.0, 1.0, 0.0), 7.0), ((1.0, 2.0, 0.0), 7.0)):
        plan = sequence_schedule(problem(), ranks, (0, 0, 0))
        assert plan.makespan_s == makespan
        first, second = sorted((0, 1), key=lambda index: -ranks[index])
        assert plan.ranks[first] > plan.ranks[second] > plan.ranks[2]
        assert plan.waits == ((first, second),)


def test_layers_in_slots_of_their_own_wait_for_nobody():
    plan = sequence_schedule(
        problem(Platform((Device("cpu", slots=2), Device("gpu", "gpu")))), (2, 1, 0), (0,) * 3
    )
    assert plan.makespan_s == 5.0
    assert plan.waits == ()
