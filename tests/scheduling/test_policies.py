"""What the board predicts, what a policy decides by default, and where each policy puts a layer."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Request, Work
from overlap_train.scheduling.planning import (
    Problem,
    exhaustive_placement,
    heft_placement,
    optimistic_costs,
    search_placement,
    sequence_schedule,
    upward_ranks,
)
from overlap_train.scheduling.policies import POLICIES, EarliestFinish, Heft, Oracle, make_policy
from overlap_train.scheduling.policy import Board, CpuOnly, GpuOnly, Paper
from tests.scheduling.graphs import (
    CORES,
    chain,
    cut,
    job,
    layer,
    random_costs,
    random_graph,
    random_platform,
    times,
)

TWO_SLOTS = Platform((Device("cpu", slots=2), Device("gpu", "gpu")))
CPU, GPU = TWO_SLOTS.devices


def board_of(*devices, seconds=1.0, links=None):
    return Board(Platform(devices or (CPU, GPU), links or {}), FixedCosts(lambda layer, device: seconds))


def one(device, seconds):
    return replace(job(0.0, device), predicted_s=seconds)


def wait(board, waiting):
    board.expect(waiting.device, waiting.predicted_s)


def test_the_board_expects_a_job_where_a_slot_is_free():
    device = Device("cpu", slots=4)
    board = board_of(device)
    board.now_s = 10.0
    assert board.free_s(device) == 10.0
    long = one(device, 0.4)
    wait(board, long)
    board.started(long)
    short = [one(device, 0.01) for _ in range(3)]
    for number, waiting in enumerate(short):
        assert board.free_s(device) == 10.0, f"{number} are about to begin in three free slots"
        wait(board, waiting)
    assert board.free_s(device) == pytest.approx(10.01), "behind the short ones, not behind the long one"
    for waiting in short:
        board.started(waiting)
    assert board.free_s(device) == pytest.approx(10 + (0.4 + 3 * 0.01) / 4), "all slots are taken"
    board.now_s = 10.005
    board.ended(short[0])
    assert board.free_s(device) == 10.005


def test_a_device_is_not_taken_for_a_little_while_others_lose_more():
    platform = Platform((Device("cpu", "cpu", slots=2), Device("gpu", "gpu")))
    board = Board(platform, FixedCosts(lambda layer, device: 1.0))
    board.active_requests = 1
    assert board.held_up_s(platform["cpu"], 1.0) == 0
    board.active_requests = 5
    assert board.held_up_s(platform["cpu"], 1.0) == 1.0
    assert board.held_up_s(platform["gpu"], 1.0) == 2.0
    alone = Board(Platform((Device("cpu", "cpu", slots=2),)), FixedCosts(lambda layer, device: 1.0))
    alone.active_requests = 5
    assert alone.held_up_s(platform["cpu"], 1.0) == 2.0


def test_a_device_is_free_when_all_before_are_done_and_a_copy_is_there_to_try_things_on():
    board = board_of()
    running, waiting = one(GPU, 2.0), one(GPU, 3.0)
    wait(board, running)
    board.started(running)
    wait(board, waiting)
    assert (board.free_s(GPU), board.left_s(GPU), board.busy(GPU), board.idle(GPU)) == (5.0, 2.0, 2, 0)
    board.now_s, board.active_requests = 1.5, 2
    tried = board.copy()
    assert (tried.now_s, tried.active_requests) == (1.5, 2)
    tried.expect(GPU, 4.0)
    tried.ended(running)
    assert (tried.busy(GPU), board.busy(GPU)) == (2, 2)
    assert board.free_s(GPU) == pytest.approx(1.5 + 0.5 + 3.0)
    board.now_s = 5.0  # what is late is taken to need as much again
    assert board.left_s(GPU) == 3.0


def test_what_is_dropped_or_over_is_forgotten():
    board = board_of()
    jobs = [one(CPU, seconds) for seconds in (0.1, 0.2, 0.3)]
    for each in jobs:
        wait(board, each)
    board.dropped(jobs[0])
    assert board.busy(CPU) == 2
    board.started(jobs[1])
    board.ended(jobs[1])
    board.ended(jobs[1])  # of a request that has failed meanwhile
    board.dropped(jobs[2])
    assert (board.busy(CPU), board.idle(CPU), board.free_s(CPU)) == (0, 2, 0.0)


def test_transfers_come_from_where_the_inputs_are():
    links = {("cpu", "gpu"): Transfer(0.5, 1e6), ("gpu", "cpu"): Transfer(2.0, 1e6)}
    layers = [layer("a", Port(-1), outputs=(10**6,)), layer("b", Port(0), Port(-1))]
    graph = LayerGraph(layers, [Port(1)], input_bytes=(10**6,))
    board, request = board_of(links=links), Request(0, graph, examples=2.0)
    assert board.transfer_in_s(request, 0, {}, CPU) == 0.0  # the request brings its inputs to the CPU
    assert board.transfer_in_s(request, 0, {}, GPU) == 0.5 + 2.0
    assert board.run_s(request, 1, {0: "gpu"}, CPU) == 2.0 + 2.0 + 2 * 1.0
    assert board.run_s(request, 1, {0: "gpu"}, GPU) == 0.5 + 2.0 + 2 * 1.0
    board.expect(GPU, 7.0)
    assert board.done_s(request, 1, {0: "gpu"}, GPU) == 7.0 + 4.5


PLATFORM = Platform((Device("cpu"), Device("gpu", "gpu"), Device("gpu2", "gpu")))
KINDS = ("conv", "depthwise", "dense", "norm", "pool")


def placed_kinds(policy, board):
    layers = [Layer(kind, Work(kind), (Port(n - 1),)) for n, kind in enumerate(KINDS)]
    request = Request(0, LayerGraph(layers, [Port(len(KINDS) - 1)]))
    places = dict.fromkeys(range(-1, len(KINDS)), "cpu")
    return [policy.select(request, index, places, board).name for index in range(len(KINDS))]


@pytest.mark.parametrize(
    ("policy", "devices", "places"),
    [
        (GpuOnly, PLATFORM, ["gpu"] * 5),
        (CpuOnly, PLATFORM, ["cpu"] * 5),
        (Paper, PLATFORM, ["gpu", "gpu", "cpu", "cpu", "cpu"]),
        (GpuOnly, Platform((Device("cpu"),)), ["cpu"] * 5),
        (Paper, Platform((Device("cpu"),)), ["cpu"] * 5),
    ],
)
def test_each_has_its_kind_of_device_of_several_the_first_that_is_free(policy, devices, places):
    board = Board(devices, FixedCosts(lambda *_: 1.0))
    assert placed_kinds(policy(), board) == places
    if places[0] == "gpu":
        board.expect(devices["gpu"], 5.0)
        assert placed_kinds(policy(), board)[0] == "gpu2"


TWO = Platform((Device("cpu"), Device("gpu", "gpu")))


def costs_of(slow="cpu"):
    return FixedCosts(lambda layer, device: 5.0 if device.name == slow else 1.0)


def fork():
    """Two layers that may run beside each other, and one behind both."""
    return LayerGraph([layer("a", Port(-1)), layer("b", Port(-1)), layer("c", Port(0), Port(1))], [Port(2)])


def placed(policy, request, board):
    board.active_requests += 1
    policy.admit(request, board)
    places = {}
    for index in range(len(request.graph)):
        places[index] = policy.select(request, index, places, board).name
    return list(places.values())


def test_a_plan_is_given_up_for_good_when_another_request_comes():
    rng = random.Random(1)
    graph, platform = random_graph(rng, 5), random_platform(rng)
    policy, board = EarliestFinish(), Board(platform, FixedCosts(random_costs(rng, graph)))
    request, places = Request(0, graph), dict.fromkeys(range(-1, 5), platform.home)
    board.active_requests = 1
    policy.admit(request, board)
    assert not policy.may_move(request)
    board.active_requests = 2
    policy.select(request, 0, places, board)
    board.active_requests = 1
    policy.select(request, 1, places, board)
    assert policy.may_move(request)


@pytest.mark.parametrize("policy", [Heft, Oracle])
def test_a_planned_request_is_placed_as_planned_until_it_is_released(policy):
    policy, board = policy(), Board(TWO, costs_of())
    request = Request(3, fork())
    assert placed(policy, request, board) == ["gpu"] * 3
    assert policy.rank(request, 0, board) > policy.rank(request, 2, board)
    assert not policy.may_move(request)
    policy.release(request)
    with pytest.raises(KeyError):
        policy.select(request, 0, {}, board)
    policy.release(request)  # of one that was never admitted


@pytest.mark.parametrize(("gpu_s", "cpu_s", "whole"), [(0.01, 0.1, True), (1.0, 0.02, False)])
def test_a_plan_is_for_the_form_that_is_done_sooner(gpu_s, cpu_s, whole):
    board = Board(Platform((Device("cpu", slots=4), Device("gpu", "gpu"))), FixedCosts(times(gpu_s, cpu_s)))
    for policy in (Heft(), Oracle(), EarliestFinish()):
        request = Request(0, cut())
        board.active_requests = 1
        waits = policy.admit(request, board)
        assert policy.runs_whole(request, 5, {}, board) is whole
        if whole:  # should it be given up, nothing is to hold the pieces
            assert not {1, 2, 3, 4} & {index for pair in waits for index in pair}


def test_requests_of_a_kind_share_a_plan_until_the_costs_have_changed():
    costs, made = costs_of(), []
    board, policy = Board(TWO, costs), EarliestFinish()
    graph, plan = fork(), policy._plan

    def counted(request, board):
        made.append(request.number)
        return plan(request, board)

    policy._plan = counted
    policy.prepare(graph, board)
    assert made == [-1]
    for number in range(2):
        board.active_requests = 1
        policy.admit(Request(number, graph), board)
    assert made == [-1]
    policy.admit(Request(2, graph, examples=2.0), board)  # of another batch
    assert made == [-1, 2]
    costs.version += 1
    policy.admit(Request(3, graph), board)
    assert made == [-1, 2]  # not more than a few times a second
    board.now_s += 1.0
    policy.admit(Request(4, graph), board)
    assert made == [-1, 2, 4]


def test_neither_a_large_request_nor_one_of_a_single_device_is_planned():
    policy = EarliestFinish()
    policy._plan = lambda request, board: pytest.fail("it was planned")
    alone = Board(Platform((Device("cpu"),)), costs_of())
    policy.prepare(fork(), alone)
    assert placed(policy, Request(0, fork()), alone) == ["cpu"] * 3
    assert policy.tail_s(Request(0, fork()), 0, TWO["cpu"], alone) == 0.0
    board, request = Board(TWO, costs_of()), Request(0, chain("n", *[1] * 25))
    policy.prepare(request.graph, board)
    assert set(placed(policy, request, board)) == {"gpu"}
    assert policy.may_move(request)
    assert policy.tail_s(request, 0, TWO["gpu"], board) == pytest.approx(24.0)
    assert policy.tail_s(request, 24, TWO["gpu"], board) == 0.0


def test_among_others_a_layer_goes_where_the_request_is_done_first():
    board, policy = Board(TWO, costs_of()), EarliestFinish()
    board.active_requests = 1
    request = Request(0, fork())
    assert placed(policy, request, board)[0] == "gpu"
    board.expect(TWO["gpu"], 100.0)
    assert policy.select(request, 0, {}, board).name == "cpu"


def test_policies_are_made_by_name():
    assert {name: type(make_policy(name)) for name in POLICIES} == POLICIES
    given = GpuOnly()
    assert make_policy(given) is given
    assert make_policy("heft") is not make_policy("heft")
    with pytest.raises(ValueError, match=r"policy must be one of .*'cpu_only'"):
        make_policy("fastest")


def test_optimistic_costs_know_both_forms_and_that_pieces_share_a_device():
    whole_s = optimistic_costs(Problem.of(cut(), CORES, FixedCosts(times(0.01, 1.0))))[0]
    assert whole_s == pytest.approx([0.01 + 1e-6] * 2)
    pieces_s = optimistic_costs(Problem.of(cut(), CORES, FixedCosts(times(1.0, 0.02))))[0]
    assert pieces_s == pytest.approx([1.1 * 0.02 / 4 + 2e-6] * 2)


def test_the_figures_of_a_request_count_transfers_and_examples_and_so_do_ranks():
    seconds = {"a": (4.0, 1.0), "b": (2.0, 3.0), "c": (1.0, 1.0)}
    layers = [layer("a", Port(-1), outputs=(10**6,)), layer("b", Port(-1)), layer("c", Port(0), Port(1))]
    costs = FixedCosts(lambda x, device: seconds[x.name][device.kind == "gpu"])
    links = {("cpu", "gpu"): Transfer(0.25, 1e6), ("gpu", "cpu"): Transfer(0.5, 1e6)}
    made, free = (
        Problem.of(LayerGraph(layers, [Port(2)]), Platform((GPU, Device("cpu")), between), costs, 2.0)
        for between in (links, {})
    )
    assert (made.run_s, made.home, made.slots) == (((2.0, 8.0), (6.0, 4.0), (2.0, 2.0)), 1, (1, 1))
    assert made.arrive_s(0, 0, ()) == 0.25  # from where the request's inputs are
    assert made.arrive_s(2, 1, (0, 1)) == 0.5 + 2.0
    assert made.arrive_s(2, 0, (0, 0)) == 0.0
    first, second, last = upward_ranks(made)
    assert first > second > last > 0
    assert upward_ranks(free)[0] < first


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


def test_a_search_that_takes_too_long_is_ended():
    ended = exhaustive_placement(random_problem(1, 8), max_steps=0)
    assert ended.makespan_s == search_placement(random_problem(1, 8)).makespan_s
