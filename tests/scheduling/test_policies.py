"""What the board predicts, what a policy decides by default, and where each policy puts a layer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from overlap_train.errors import SchedulingError
from overlap_train.scheduling import Device, Platform, Policy, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Request, Work
from overlap_train.scheduling.policies import POLICIES, EarliestFinish, Heft, Oracle, make_policy
from overlap_train.scheduling.policy import Board, CpuOnly, GpuOnly, Paper, selected
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


def test_the_board_expects_a_job_where_a_slot_is_free():
    device = Device("cpu", slots=4)
    board = board_of(device)
    board.now_s = 10.0
    assert board.free_s(device) == 10.0
    long = one(device, 0.4)
    board.queued(long)
    board.started(long)
    short = [one(device, 0.01) for _ in range(3)]
    for number, waiting in enumerate(short):
        assert board.free_s(device) == 10.0, f"{number} are about to begin in three free slots"
        board.queued(waiting)
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


def test_a_device_with_one_slot_is_free_when_all_before_are_done():
    board = board_of()
    running, waiting = one(GPU, 2.0), one(GPU, 3.0)
    board.queued(running)
    board.started(running)
    board.queued(waiting)
    assert (board.free_s(GPU), board.left_s(GPU), board.busy(GPU), board.idle(GPU)) == (5.0, 2.0, 2, 0)
    board.now_s = 1.5
    assert board.free_s(GPU) == pytest.approx(1.5 + 0.5 + 3.0)


def test_what_takes_longer_than_expected_is_taken_to_need_as_much_again_as_it_is_late():
    board = board_of()
    late = one(GPU, 2.0)
    board.queued(late)
    board.started(late)
    board.now_s = 5.0
    assert board.left_s(GPU) == 3.0


def test_what_is_dropped_or_over_is_forgotten():
    board = board_of()
    jobs = [one(CPU, seconds) for seconds in (0.1, 0.2, 0.3)]
    for each in jobs:
        board.queued(each)
    board.dropped(jobs[0])
    assert board.busy(CPU) == 2
    board.started(jobs[1])
    board.ended(jobs[1])
    board.ended(jobs[1])  # of a request that has failed meanwhile
    board.dropped(jobs[2])
    assert (board.busy(CPU), board.idle(CPU), board.free_s(CPU)) == (0, 2, 0.0)


def test_a_copy_is_there_to_try_things_on():
    board = board_of()
    board.now_s, board.active_requests = 3.0, 2
    running = one(GPU, 2.0)
    board.queued(running)
    board.started(running)
    tried = board.copy()
    assert (tried.now_s, tried.active_requests, tried.free_s(GPU)) == (3.0, 2, 5.0)
    tried.expect(GPU, 4.0)
    tried.ended(running)
    assert (board.busy(GPU), board.free_s(GPU), tried.busy(GPU)) == (1, 5.0, 1)


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


class Plain(Policy):
    name = "plain"

    def __init__(self, device="gpu"):
        self.device = device

    def select(self, request, index, places, board):
        return board.platform[self.device]


@pytest.mark.parametrize(
    "answer", [None, "cpu", 0, Device("elsewhere")], ids=["none", "name", "number", "of another platform"]
)
def test_what_is_no_device_of_the_platform_is_refused(answer):
    class Own(Plain):
        def select(self, request, index, places, board):
            return answer

    board, request = Board(CORES, FixedCosts(times(1.0, 1.0))), Request(0, chain("c", 1))
    with pytest.raises(
        SchedulingError, match=r"Own\.select must return one of the platform's devices, .*; got"
    ):
        selected(Own(), request, 0, {}, board)
    assert selected(Plain(), request, 0, {}, board) is CORES["gpu"]


PLATFORM = Platform((Device("cpu"), Device("gpu", "gpu"), Device("gpu2", "gpu")))
KINDS = ("conv", "depthwise", "dense", "norm", "pool")


def placed_kinds(policy, board=None):
    layers = [Layer(kind, Work(kind), (Port(n - 1),)) for n, kind in enumerate(KINDS)]
    request = Request(0, LayerGraph(layers, [Port(len(KINDS) - 1)]))
    board = board or Board(PLATFORM, FixedCosts(lambda *_: 1.0))
    places = dict.fromkeys(range(-1, len(KINDS)), "cpu")
    return [policy.select(request, index, places, board).name for index in range(len(KINDS))]


def test_each_has_its_kind_of_device():
    assert placed_kinds(GpuOnly()) == ["gpu"] * 5
    assert placed_kinds(CpuOnly()) == ["cpu"] * 5
    assert placed_kinds(Paper()) == ["gpu", "gpu", "cpu", "cpu", "cpu"]


@pytest.mark.parametrize("policy", [GpuOnly, Paper])
def test_of_several_the_one_that_is_done_first(policy):
    board = Board(PLATFORM, FixedCosts(lambda *_: 1.0))
    board.expect(PLATFORM["gpu"], 5.0)
    assert placed_kinds(policy(), board)[0] == "gpu2"


def test_without_such_a_device_it_goes_to_another():
    board = Board(Platform((Device("cpu"),)), FixedCosts(lambda *_: 1.0))
    assert placed_kinds(GpuOnly(), board) == placed_kinds(Paper(), board) == ["cpu"] * 5


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


def test_with_one_device_nothing_is_planned():
    board, policy = Board(Platform((Device("cpu"),)), costs_of()), EarliestFinish()
    policy._plan = lambda request, board: pytest.fail("it was planned")
    policy.prepare(fork(), board)
    request = Request(0, fork())
    assert placed(policy, request, board) == ["cpu"] * 3
    assert (policy.rank(request, 0, board), policy.tail_s(request, 0, TWO["cpu"], board)) == (0.0, 0.0)


def test_a_large_request_is_placed_layer_by_layer():
    board, policy = Board(TWO, costs_of()), EarliestFinish()
    policy._plan = lambda request, board: pytest.fail("it was planned")
    graph = chain("n", *[1] * 25)
    policy.prepare(graph, board)
    request = Request(0, graph)
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
