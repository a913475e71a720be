"""A graph or a platform that cannot be run is refused."""

from __future__ import annotations

import pytest

from overlap_train.scheduling.graph import LayerGraph, Port
from tests.scheduling.graphs import layer


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
