"""From layers to jobs: none twice or too early, the most urgent first, and idle devices take over."""

from __future__ import annotations

import random

import pytest

from overlap_train.errors import SchedulerClosedError, SchedulingError
from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.distributor import JobQueue, LayerController, LayerDistributor, SyncChecker
from overlap_train.scheduling.graph import LayerGraph, Port, Request
from overlap_train.scheduling.policy import Board
from tests.scheduling.graphs import Movable, chain, job, layer, random_graph


def test_queue_gives_each_device_its_most_urgent_job_first():
    one, two = Device("one"), Device("two")
    queue = JobQueue((one, two))
    jobs = [job(3, one), job(1, one), job(1, one, rank=5), job(0, two), job(1, one)]
    for each in jobs:
        queue.put(each)
    assert [queue.take_now(one) for _ in range(5)] == [jobs[2], jobs[1], jobs[4], jobs[0], None]
    assert queue.take(two) is jobs[3]


def test_a_closed_queue_returns_what_is_left_and_takes_nothing():
    device = Device("one")
    queue = JobQueue((device,))
    queue.put(left := job(0, device))
    assert queue.close() == [left]
    assert queue.close() == []
    assert queue.take(device) is None
    with pytest.raises(SchedulerClosedError):
        queue.put(left)


def test_sync_checker_refuses_a_layer_twice_or_too_early():
    checker = SyncChecker(random_graph(random.Random(0), 5))
    with pytest.raises(SchedulingError, match="before its inputs"):
        checker.complete(4)
    first = checker.first()[0]
    checker.complete(first)
    with pytest.raises(SchedulingError, match="a second time"):
        checker.complete(first)


def test_sync_checker_keeps_orderings_beyond_the_graph():
    graph = LayerGraph([layer("a", Port(-1)), layer("b", Port(-1))], [Port(0), Port(1)])
    checker = SyncChecker(graph)
    checker.hold([(1, 0)])
    assert checker.first() == [1]
    assert checker.complete(1) == [0]


@pytest.mark.parametrize("waits", [None, 3, [1], [(0, 2)], [(-1, 0)], [("a", "b")], [(0, 1, 1)]])
def test_waits_that_are_no_pairs_of_layers_are_refused(waits):
    graph = LayerGraph([layer("a", Port(-1)), layer("b", Port(-1))], [Port(0), Port(1)])
    with pytest.raises(SchedulingError, match=r"admit must return pairs .* from 0 to 1; got"):
        SyncChecker(graph).hold(waits)


def test_layers_that_wait_for_each_other_are_told_when_nothing_can_run():
    graph = LayerGraph([layer(name, Port(-1)) for name in "abc"], [Port(n) for n in range(3)])
    with pytest.raises(SchedulingError, match=r"no layer of .* can run, and 3 are left"):
        SyncChecker(graph).hold([(0, 1), (1, 2), (2, 0)])
    checker = SyncChecker(graph)
    checker.hold([(0, 1), (1, 0)])
    with pytest.raises(SchedulingError, match=r"no layer of .* can run, and 2 are left"):
        checker.complete(2)


class Fixed(Movable):
    def may_move(self, request):
        return False


def waiting_for_the_cpu(*requests, make_queue=JobQueue, on_gpu_s=0.01, policy=Movable):
    """The first layer of each request is for the CPU, where one runs; the GPU is idle."""
    platform = Platform((Device("cpu", "cpu"), Device("gpu", "gpu")))
    costs = FixedCosts(lambda layer, device: on_gpu_s if device.kind == "gpu" else 0.01)
    board, queue = Board(platform, costs), make_queue(tuple(platform.devices))
    distributor = LayerDistributor(policy(), board, queue)
    for request in requests:
        distributor.admit(LayerController(request))
    board.started(queue.take_now(platform["cpu"]))
    return distributor, board, queue, platform


def test_the_most_urgent_of_those_that_gain_is_moved():
    requests = [Request(n, chain(str(n), 10), priority=priority) for n, priority in enumerate((3, 1, 2, 1))]
    distributor, board, queue, platform = waiting_for_the_cpu(*requests)
    distributor.rebalance()
    assert queue.take_now(platform["gpu"]).request.number == 2
    assert [job.request.number for job in queue.waiting(platform["cpu"], 9)] == [1, 3]
    assert (board.busy(platform["cpu"]), board.busy(platform["gpu"])) == (3, 1)


@pytest.mark.parametrize("options", [{"on_gpu_s": 0.05}, {"policy": Fixed}], ids=["longer", "fixed"])
def test_what_would_take_longer_on_the_idle_device_or_may_not_be_moved_stays(options):
    requests = [Request(n, chain(str(n), 10)) for n in range(2)]
    distributor, board, queue, platform = waiting_for_the_cpu(*requests, **options)
    distributor.rebalance()
    assert queue.take_now(platform["gpu"]) is None
    assert board.busy(platform["cpu"]) == 2


def test_a_job_that_a_worker_takes_meanwhile_is_not_moved():
    class Raced(JobQueue):
        def waiting(self, device, count):
            seen = super().waiting(device, count)
            self.taken = self.take_now(device)
            return seen

    requests = [Request(n, chain(str(n), 10)) for n in range(2)]
    distributor, board, queue, platform = waiting_for_the_cpu(*requests, make_queue=Raced)
    distributor.rebalance()
    assert queue.taken.request.number == 1
    assert queue.take_now(platform["gpu"]) is None
    board.started(queue.taken)
    assert (board.busy(platform["cpu"]), board.busy(platform["gpu"])) == (2, 0)


class OnGpu(Movable):
    def __init__(self):
        self.released = []

    def select(self, request, index, places, board):
        return board.platform["gpu"]

    def rank(self, request, index, board):
        return 10.0 + index

    def release(self, request):
        self.released.append(request.number)


def scene(seconds=0.01):
    platform = Platform((Device("cpu"), Device("gpu", "gpu")), {("cpu", "gpu"): Transfer(0.5, 1e6)})
    board, queue, policy = (
        Board(platform, FixedCosts(lambda *_: seconds)),
        JobQueue(platform.devices),
        OnGpu(),
    )
    return LayerDistributor(policy, board, queue, aging_s=2.0), board, queue, policy


def taken(queue, device):
    jobs = []
    while (job := queue.take_now(device)) is not None:
        jobs.append(job)
    return jobs


def test_a_job_says_what_is_brought_where_and_how_long_that_takes():
    graph = LayerGraph([layer("a", Port(-1))], [Port(0)], input_bytes=(10**6,))
    distributor, board, queue, _ = scene()
    distributor.admit(LayerController(Request(0, graph, ("x",), arrival_s=7.0, priority=2, examples=3.0)))
    (job,) = taken(queue, board.platform["gpu"])
    assert (job.inputs, job.size_bytes, job.transfer_bytes) == (("x",), 3 * 10**6, 3 * 10**6)
    assert job.transfer_s == pytest.approx(0.5 + 3.0)
    assert job.predicted_s == pytest.approx(3.5 + 0.01 * 1.0, rel=0.02)
    assert (job.urgency_s, job.rank) == (7.0 - 2 * 2.0, 10.0)
    assert board.active_requests == 1
    assert board.busy(board.platform["gpu"]) == 1


def test_a_deadline_counts_from_the_shortest_time_that_is_left():
    distributor, board, queue, _ = scene(seconds=1.0)
    distributor.admit(LayerController(Request(0, chain("n", 1, 1, 1), arrival_s=9.0, deadline_s=8.0)))
    (job,) = taken(queue, board.platform["gpu"])
    assert job.urgency_s == pytest.approx(8.0 - 3.0 - 2.0, abs=0.6)


def test_a_request_that_is_over_is_forgotten_and_told_to_the_policy():
    distributor, board, queue, policy = scene()
    controller = LayerController(Request(4, chain("n", 1)))
    distributor.admit(controller)
    (job,) = taken(queue, board.platform["gpu"])
    assert distributor.complete(controller, job, ["y"])
    distributor.release(controller.request)
    assert (policy.released, board.active_requests) == ([4], 0)
