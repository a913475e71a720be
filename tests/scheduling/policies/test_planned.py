"""Plans are followed while a request is alone, shared by requests of a kind, and made anew with the costs."""

from __future__ import annotations

import random

import pytest

from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import LayerGraph, Port, Request
from overlap_train.scheduling.policies import POLICIES, EarliestFinish, Heft, Oracle, make_policy
from overlap_train.scheduling.policy import Board, GpuOnly
from tests.scheduling.graphs import chain, cut, layer, random_costs, random_graph, random_platform, times

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


def test_the_oracle_uses_both_devices_where_that_is_sooner():
    board = Board(TWO, FixedCosts(lambda layer, device: 1.0))
    assert sorted(placed(Oracle(), Request(0, fork()), board)[:2]) == ["cpu", "gpu"]


def test_the_oracle_refuses_what_would_take_too_long():
    board = Board(TWO, costs_of())
    with pytest.raises(ValueError, match="up to 10 layers, got 11; use heft"):
        Oracle().admit(Request(0, chain("n", *[1] * 11)), board)


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


def test_who_comes_while_others_run_is_not_planned_for():
    board, policy = Board(TWO, costs_of()), EarliestFinish()
    board.active_requests = 2
    request = Request(0, fork())
    assert policy.admit(request, board) == ()
    assert policy.may_move(request)


def test_policies_are_made_by_name():
    assert {name: type(make_policy(name)) for name in POLICIES} == POLICIES
    given = GpuOnly()
    assert make_policy(given) is given
    assert make_policy("heft") is not make_policy("heft")
    with pytest.raises(ValueError, match=r"policy must be one of .*'cpu_only'"):
        make_policy("fastest")
