"""From layers to jobs: none twice or too early, the most urgent first, and idle devices take over."""

import pytest

from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.distributor import JobQueue, LayerDistributor
from overlap_train.scheduling.graph import LayerGraph, Port, Request, urgency
from overlap_train.scheduling.policy import Board
from tests.scheduling.graphs import Movable, chain, layer


class Fixed(Movable):
    moves = False


def waiting_for_the_cpu(*requests, make_queue=JobQueue, on_gpu_s=0.01, policy=Movable):
    """The first layer of each request is for the CPU, where one runs; the GPU is idle."""
    platform = Platform((Device("cpu", "cpu"), Device("gpu", "gpu")))
    costs = FixedCosts(lambda layer, device: on_gpu_s if device.kind == "gpu" else 0.01)
    board, queue = Board(platform, costs), make_queue(tuple(platform.devices))
    distributor = LayerDistributor(policy(), board, queue)
    for request in requests:
        distributor.admit(request)
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
    def select(self, request, index, places, board):
        return board.platform["gpu"]

    def rank(self, request, index, board):
        return 10.0 + index


def scene():
    platform = Platform((Device("cpu"), Device("gpu", "gpu")), {("cpu", "gpu"): Transfer(0.5, 1e6)})
    board, queue = Board(platform, FixedCosts(lambda *_: 0.01)), JobQueue(platform.devices)
    return LayerDistributor(OnGpu(), board, queue), board, queue


def taken(queue, device):
    jobs = []
    while (job := queue.take_now(device)) is not None:
        jobs.append(job)
    return jobs


def test_a_job_says_what_is_brought_where_and_how_long_that_takes():
    graph = LayerGraph([layer("a", Port(-1))], [Port(0)], input_bytes=(10**6,))
    distributor, board, queue = scene()
    request = Request(0, graph, ("x",), arrival_s=7.0, priority=2, examples=3.0)
    distributor.admit(request)
    controller = distributor.controllers[0]
    (job,) = taken(queue, board.platform["gpu"])
    assert (job.inputs, job.size_bytes, job.transfer_bytes) == (("x",), 3 * 10**6, 3 * 10**6)
    assert job.transfer_s == pytest.approx(0.5 + 3.0)
    assert job.predicted_s == pytest.approx(3.5 + 0.01 * 1.0, rel=0.02)
    assert (job.urgency_s, job.rank) == (7.0 - 2 * 1.0, 10.0)
    assert (board.active_requests, board.busy(board.platform["gpu"])) == (1, 1)
    assert distributor.complete(controller, job, ["y"])
    distributor.release(controller.request)
    assert board.active_requests == 0


@pytest.mark.parametrize(
    ("options", "rank_s"),
    [
        ({}, 5.0),
        ({"priority": 2}, 5.0 - 2.0),
        ({"priority": -1}, 5.0 + 1.0),
        ({"deadline_s": 100.0}, 5.0),
        ({"deadline_s": 6.0}, 6.0 - 1.0 - 1.0),
        ({"deadline_s": 6.0, "priority": 2}, 3.0),
    ],
)
def test_priority_and_deadline_count_as_time(options, rank_s):
    assert urgency(Request(0, chain("n", 1), arrival_s=5.0, **options), remaining_s=1.0) == rank_s
