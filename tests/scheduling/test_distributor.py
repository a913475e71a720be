"""From layers to jobs: none twice or too early, the most urgent first, and idle devices take over."""

from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.distributor import JobQueue, LayerDistributor
from overlap_train.scheduling.graph import Request
from overlap_train.scheduling.policy import Board
from tests.scheduling.graphs import Movable, chain


def waiting_for_the_cpu(*requests, make_queue=JobQueue):
    """The first layer of each request is for the CPU, where one runs; the GPU is idle."""
    platform = Platform((Device("cpu", "cpu"), Device("gpu", "gpu")))
    board, queue = Board(platform, FixedCosts(lambda *_: 0.01)), make_queue(tuple(platform.devices))
    distributor = LayerDistributor(Movable(), board, queue)
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
