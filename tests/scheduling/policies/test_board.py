"""The board predicts when a device could begin one more job, and what others lose by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import LayerGraph, Port, Request
from overlap_train.scheduling.policy import Board
from tests.scheduling.graphs import job, layer

CPU, GPU = Device("cpu", slots=2), Device("gpu", "gpu")


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
