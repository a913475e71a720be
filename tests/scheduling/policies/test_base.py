"""What a policy decides unless it says otherwise."""

from __future__ import annotations

import pytest

from overlap_train.errors import SchedulingError
from overlap_train.scheduling import Device, Platform, Policy
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Request
from overlap_train.scheduling.policy import Board, earliest, of_kind, selected
from tests.scheduling.graphs import CORES, chain, cut, times

CPU, GPU = CORES["cpu"], CORES["gpu"]


class Plain(Policy):
    name = "plain"

    def __init__(self, device="gpu"):
        self.device = device

    def select(self, request, index, places, board):
        return board.platform[self.device]


def test_a_policy_that_says_nothing_plans_moves_and_orders_nothing():
    board, request = Board(CORES, FixedCosts(lambda *_: 1.0)), Request(0, chain("n", 1))
    policy = Plain()
    assert policy.prepare(request.graph, board) is policy.release(request) is None
    assert policy.admit(request, board) == ()
    assert (policy.may_move(request), policy.rank(request, 0, board)) == (False, 0.0)
    assert policy.tail_s(request, 0, GPU, board) == 0.0


def test_the_earliest_is_the_one_that_is_done_first():
    costs = FixedCosts(lambda layer, device: 2.0 if device.kind == "gpu" else 5.0)
    board, request = Board(CORES, costs), Request(0, chain("n", 1))
    assert earliest((CPU, GPU), request, 0, {}, board) is GPU
    board.expect(GPU, 4.0)
    assert earliest((CPU, GPU), request, 0, {}, board) is CPU
    assert earliest((GPU,), request, 0, {}, board) is GPU


def test_where_there_is_no_device_of_a_kind_any_will_do():
    assert list(of_kind(CORES, "gpu")) == [GPU]
    alone = Platform((Device("cpu"), Device("other")))
    assert list(of_kind(alone, "gpu")) == list(alone.devices)


@pytest.mark.parametrize(
    ("device", "gpu_s", "cpu_s", "whole"),
    [("gpu", 1.0, 9.0, True), ("cpu", 9.0, 1.0, False), ("cpu", 9.0, 0.0, True)],
)
def test_a_layer_runs_whole_if_the_request_is_done_no_later_so(device, gpu_s, cpu_s, whole):
    """Four pieces take a tenth more together: on the GPU one after another, on four cores side by side."""
    graph = cut()
    board, request = Board(CORES, FixedCosts(times(gpu_s, cpu_s))), Request(0, graph)
    board.active_requests = 1
    join = 5
    assert Plain(device).runs_whole(request, join, {0: device}, board) is whole
    assert request.whole == {}  # what was tried is not decided


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
    assert selected(Plain(), request, 0, {}, board) is GPU
