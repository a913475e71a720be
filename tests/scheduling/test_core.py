"""The parts without threads: imports, graphs, the synch checker, the queue, devices."""

from __future__ import annotations

import random
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

import overlap_train.scheduling
from overlap_train.errors import SchedulerClosedError, SchedulingError
from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs.model import FixedCosts
from overlap_train.scheduling.graph.layers import Layer, LayerGraph, Port, Work
from overlap_train.scheduling.graph.requests import Job, Request
from overlap_train.scheduling.policies.board import Board
from overlap_train.scheduling.runtime.controller import LayerController, SyncChecker
from overlap_train.scheduling.runtime.job_queue import JobQueue

from .graphs import Tensor, random_graph

PACKAGE = str(Path(overlap_train.scheduling.__file__).parents[1])


def test_core_imports_without_tensorflow():
    """The package's own `__init__` may import the trainer, so a bare one stands in its place."""
    code = (
        "import sys, types; "
        f"package = types.ModuleType('overlap_train'); package.__path__ = [{PACKAGE!r}]; "
        "sys.modules['overlap_train'] = package; "
        "import overlap_train.scheduling as s; "
        "from overlap_train.scheduling.runtime import segments; "
        "s.simulate, s.Engine, s.CostModel, s.MultiModelScheduler; "
        "sys.exit(any(name in sys.modules for name in ('tensorflow', 'keras')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def layer(name, *inputs, outputs=(0,)):
    return Layer(name, Work("conv"), tuple(inputs), outputs)


@pytest.mark.parametrize(
    ("layers", "outputs", "message"),
    [
        ([], [], "at least one layer"),
        ([layer("a", Port(-1)), layer("a", Port(0))], [Port(1)], "'a' repeats"),
        ([layer("a", Port(0))], [Port(0)], "expected one before it"),
        ([layer("a", Port(-1, 1))], [Port(0)], "reads input 1"),
        ([layer("a", Port(-1))], [Port(0, 1)], "reads output 1"),
        ([layer("a", Port(-1))], [Port(1)], "the output reads layer 1"),
    ],
)
def test_a_graph_that_cannot_run_is_refused(layers, outputs, message):
    with pytest.raises(ValueError, match=message):
        LayerGraph(layers, outputs)


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


def test_a_controller_holds_no_tensor_that_nobody_will_read():
    chain = LayerGraph([layer(str(i), Port(i - 1)) for i in range(5)], [Port(4)])
    made = weakref.WeakValueDictionary()
    made[-1] = x = Tensor()
    controller = LayerController(Request(0, chain, (x,)))
    controller.request.inputs = ()
    del x
    for index in range(5):
        assert controller.inputs(index) == (made[index - 1],)
        made[index] = tensor = Tensor()
        controller.complete(index, (tensor,))
        del tensor
        assert set(made) == {index}
    assert controller.finished
    assert controller.outputs() == (made[4],)


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
