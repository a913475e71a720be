"""Layers become jobs for a device, and what waits goes to one that has become idle if it gains by it."""

from __future__ import annotations

import pytest

from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.distributor import JobQueue, LayerController, LayerDistributor
from overlap_train.scheduling.graph import LayerGraph, Port, Request
from overlap_train.scheduling.policy import Board
from tests.scheduling.graphs import Movable, chain, cut, layer


def waiting_for_the_cpu(*requests, make_queue=JobQueue, on_gpu_s=0.01):
    """The first layer of each request is for the CPU, where one runs; the GPU is idle."""
    platform = Platform((Device("cpu", "cpu"), Device("gpu", "gpu")))
    board, queue = (
        Board(platform, FixedCosts(lambda layer, device: on_gpu_s if device.kind == "gpu" else 0.01)),
        make_queue(tuple(platform.devices)),
    )
    distributor = LayerDistributor(Movable(), board, queue)
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


def test_what_would_take_longer_on_the_idle_device_stays():
    requests = [Request(n, chain(str(n), 10)) for n in range(2)]
    distributor, board, queue, platform = waiting_for_the_cpu(*requests, on_gpu_s=0.05)
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
    """Everything on the GPU; layers in pieces run as a test says."""

    whole = False

    def __init__(self):
        self.prepared, self.released = [], []

    def select(self, request, index, places, board):
        return board.platform["gpu"]

    def prepare(self, graph, board):
        self.prepared.append(graph)

    def runs_whole(self, request, index, places, board):
        return self.whole

    def rank(self, request, index, board):
        return 10.0 + index

    def release(self, request):
        self.released.append(request.number)


def scene(policy=None, seconds=0.01):
    links = {("cpu", "gpu"): Transfer(0.5, 1e6)}
    platform = Platform((Device("cpu"), Device("gpu", "gpu")), links)
    board, queue, policy = (
        Board(platform, FixedCosts(lambda *_: seconds)),
        JobQueue(platform.devices),
        policy or OnGpu(),
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


@pytest.mark.parametrize("whole", [True, False])
def test_pieces_are_left_out_where_their_layer_runs_whole(whole):
    distributor, board, queue, policy = scene()
    policy.whole = whole
    controller = LayerController(Request(0, cut(2)))
    distributor.admit(controller)
    (first,) = taken(queue, board.platform["gpu"])
    assert not distributor.complete(controller, first, ["y"])
    names = [job.layer.name for job in taken(queue, board.platform["gpu"])]
    assert sorted(names) == (["x"] if whole else ["x/0", "x/1"])


def test_a_request_that_is_over_is_forgotten_and_told_to_the_policy():
    distributor, board, queue, policy = scene()
    controller = LayerController(Request(4, chain("n", 1)))
    distributor.admit(controller)
    (job,) = taken(queue, board.platform["gpu"])
    assert distributor.complete(controller, job, ["y"])
    distributor.release(controller.request)
    assert (policy.released, board.active_requests) == ([4], 0)


def test_what_is_to_come_is_prepared_for():
    distributor, _, _, policy = scene()
    graph = chain("n", 1)
    distributor.prepare(graph)
    assert policy.prepared == [graph]


def test_what_may_not_be_moved_waits():
    class Fixed(Movable):
        def may_move(self, request):
            return False

    distributor, board, queue, platform = waiting_for_the_cpu(
        *(Request(n, chain(str(n), 10)) for n in range(2))
    )
    distributor._policy = Fixed()
    distributor.rebalance()
    assert queue.take_now(platform["gpu"]) is None
    assert board.busy(platform["cpu"]) == 2
