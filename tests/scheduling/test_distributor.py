"""From layers to jobs: none twice or too early, the most urgent first, and idle devices take over."""

import pytest

from overlap_train.errors import SchedulerClosedError
from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.distributor import JobQueue, LayerDistributor
from overlap_train.scheduling.graph import LayerGraph, Port, Request, require_priority, urgency
from overlap_train.scheduling.policy import Board
from tests.scheduling.graphs import Movable, chain, job, layer


def test_queue_gives_each_device_its_most_urgent_job_first():
    one, two = Device("one"), Device("two")
    queue = JobQueue((one, two))
    jobs = [job(3, one), job(1, one), job(1, one, rank=5), job(0, two), job(1, one)]
    for each in jobs:
        queue.put(each)
    assert [queue.take_now(one) for _ in range(5)] == [jobs[2], jobs[1], jobs[4], jobs[0], None]
    assert queue.take(two) is jobs[3]


def test_a_closed_queue_gives_and_takes_nothing():
    device = Device("one")
    queue = JobQueue((device,))
    queue.put(left := job(0, device))
    for _ in range(2):
        queue.close()
    assert queue.take(device) is queue.take_now(device) is None
    with pytest.raises(SchedulerClosedError):
        queue.put(left)


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
    distributor, board, queue, policy = scene()
    request = Request(0, graph, ("x",), arrival_s=7.0, priority=2, examples=3.0)
    distributor.admit(request)
    controller = distributor.controllers[0]
    (job,) = taken(queue, board.platform["gpu"])
    assert (job.inputs, job.size_bytes, job.transfer_bytes) == (("x",), 3 * 10**6, 3 * 10**6)
    assert job.transfer_s == pytest.approx(0.5 + 3.0)
    assert job.predicted_s == pytest.approx(3.5 + 0.01 * 1.0, rel=0.02)
    assert (job.urgency_s, job.rank) == (7.0 - 2 * 2.0, 10.0)
    assert (board.active_requests, board.busy(board.platform["gpu"])) == (1, 1)
    assert distributor.complete(controller, job, ["y"])
    distributor.release(controller.request)
    assert (policy.released, board.active_requests) == ([0], 0)


def test_a_deadline_counts_from_the_shortest_time_that_is_left():
    distributor, board, queue, _ = scene(seconds=1.0)
    distributor.admit(Request(0, chain("n", 1, 1, 1), arrival_s=9.0, deadline_s=8.0))
    (job,) = taken(queue, board.platform["gpu"])
    assert job.urgency_s == pytest.approx(8.0 - 3.0 - 2.0, abs=0.6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Device("a", slots=0), "slots must be at least 1; got 0"),
        (lambda: Platform(()), "unique names"),
        (lambda: Platform((Device("a"), Device("a"))), "unique names"),
        (lambda: Platform((Device("a"),), {("a", "b"): Transfer()}), "no device is named 'b'"),
        (lambda: Platform((Device("a"),), home="b"), "no device is named 'b'"),
    ],
)
def test_a_platform_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_transfers_cost_latency_and_bandwidth_and_staying_costs_nothing():
    platform = Platform((Device("c"), Device("g", "gpu")), {("c", "g"): Transfer(1e-3, 1e9)})
    assert platform.transfer_s("c", "g", 1e6) == pytest.approx(2e-3)
    assert platform.transfer_s("c", "c", 1e6) == 0
    assert platform.transfer_s("g", "c", 1e6) == 0


def request(**options):
    return Request(0, chain("n", 1), **options)


@pytest.mark.parametrize(
    ("options", "rank_s"),
    [
        ({}, 5.0),
        ({"priority": 2}, 5.0 - 2 * 3.0),
        ({"priority": -1}, 5.0 + 3.0),
        ({"deadline_s": 100.0}, 5.0),
        ({"deadline_s": 6.0}, 6.0 - 1.0 - 3.0),
        ({"deadline_s": 6.0, "priority": 2}, -1.0),
    ],
)
def test_priority_and_deadline_count_as_time(options, rank_s):
    assert urgency(request(arrival_s=5.0, **options), remaining_s=1.0, aging_s=3.0) == rank_s


def test_later_requests_get_later_values_whatever_their_priority():
    early = urgency(request(arrival_s=0.0), remaining_s=0.0, aging_s=1.0)
    urgent = [
        urgency(request(arrival_s=float(t), priority=9), remaining_s=0.0, aging_s=1.0) for t in range(20)
    ]
    assert urgent == sorted(urgent)
    assert urgent[0] < early < urgent[-1]


def test_a_priority_is_an_integer_that_can_be_weighed_as_a_time():
    for value in (0, -3, 1 << 53, -(1 << 53)):
        assert require_priority("priority", value) == value
        if abs(value) > 3:
            with pytest.raises(ValueError, match="priority must be"):
                require_priority("priority", value + value // abs(value))
