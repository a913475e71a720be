"""From layers to jobs: what they cost, none twice or too early, most urgent first; idle devices take over."""

import pytest

from overlap_train.scheduling import CostModel, Device, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.distributor import JobQueue, LayerDistributor
from overlap_train.scheduling.graph import Layer, Port, Request, Work
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


CPU = Device("CPU")


def test_a_layer_without_a_profile_takes_what_its_fastest_first_run_took_under_that_load():
    known, new = (Layer(name, Work("conv"), (Port(-1),)) for name in ("known", "new"))
    costs = CostModel()
    costs.add_profile([(known, CPU, 1e-3)])
    assert costs.seconds(new, CPU) == 1e-3
    for _ in range(400):
        costs.observe(known, CPU, 3e-3)
    version = costs.version
    for seconds in (90.0, 0.6, 0.8):  # the first one was optimised by TensorFlow
        costs.observe(new, CPU, seconds, examples=2)
    assert costs.seconds(new, CPU) == pytest.approx(0.3)
    assert costs.version > version


def test_load_is_followed_up_and_down_and_carries_over_to_other_layers():
    seen, other = (Layer(name, Work("conv"), (Port(-1),)) for name in ("seen", "other"))
    costs = CostModel()
    costs.add_profile([(seen, CPU, 1e-3), (other, CPU, 2e-3)])
    version = costs.version
    for _ in range(400):
        costs.observe(seen, CPU, 3e-3)
    assert costs.seconds(seen, CPU) == pytest.approx(3e-3, rel=0.1)
    assert costs.seconds(other, CPU) > 3e-3
    assert costs.version > version
    for _ in range(400):
        costs.observe(seen, CPU, 1e-3)
    assert costs.seconds(seen, CPU) == pytest.approx(1e-3, rel=0.1)


def test_observations_for_a_larger_batch_do_not_look_like_load():
    layer = Layer("a", Work("conv"), (Port(-1),))
    costs = CostModel()
    costs.add_profile([(layer, CPU, 1e-3)])
    for _ in range(50):
        costs.observe(layer, CPU, 8e-3, examples=8)
    assert costs.seconds(layer, CPU) == pytest.approx(1e-3)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused(seconds):
    with pytest.raises(ValueError, match=r"seconds of 'a' on 'CPU' in measured must be (positive|finite)"):
        CostModel().add_profile([(Layer("a", Work("conv"), (Port(-1),)), CPU, seconds)])
