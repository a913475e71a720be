"""The queue: each device gets its most urgent job first, and a closed queue takes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap_train.errors import SchedulerClosedError
from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.costs.model import FixedCosts
from overlap_train.scheduling.graph.layers import LayerGraph, Port
from overlap_train.scheduling.graph.requests import Job, Request
from overlap_train.scheduling.policies.board import Board
from overlap_train.scheduling.runtime.job_queue import JobQueue
from tests.scheduling.graphs import layer


def job(urgency_s, device, rank=0.0):
    graph = LayerGraph([layer("a", Port(-1))], [Port(0)])
    return Job(graph.layers[0], (), 0, Request(0, graph), 0, device, urgency_s=urgency_s, rank=rank)


def test_queue_gives_each_device_its_most_urgent_job_first():
    one, two = Device("one"), Device("two")
    queue = JobQueue((one, two))
    jobs = [job(3, one), job(1, one), job(1, one, rank=5), job(0, two), job(1, one)]
    for each in jobs:
        queue.put(each)
    assert [queue.take_now(one) for _ in range(5)] == [jobs[2], jobs[1], jobs[4], jobs[0], None]
    assert queue.take(two) is jobs[3]


def test_the_board_expects_a_job_where_a_slot_is_free():
    device = Device("cpu", slots=4)
    board = Board(Platform((device,)), FixedCosts(lambda _layer, _device: 0.0))
    board.now_s = 10.0

    def one(seconds):
        return replace(job(0.0, device), predicted_s=seconds)

    assert board.free_s(device) == 10.0
    long = one(0.4)
    board.queued(long)
    board.started(long)
    short = [one(0.01) for _ in range(3)]
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


def test_a_closed_queue_returns_what_is_left_and_takes_nothing():
    device = Device("one")
    queue = JobQueue((device,))
    queue.put(left := job(0, device))
    assert queue.close() == [left]
    assert queue.close() == []
    assert queue.take(device) is None
    with pytest.raises(SchedulerClosedError):
        queue.put(left)
