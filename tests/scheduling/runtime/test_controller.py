"""The controller: no layer twice or too early, and no tensor held that nobody will read."""

from __future__ import annotations

import random
import weakref

import pytest

from overlap_train.errors import SchedulingError
from overlap_train.scheduling.distributor import LayerController, SyncChecker
from overlap_train.scheduling.graph import LayerGraph, Port, Request
from tests.scheduling.graphs import Tensor, layer, random_graph


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
