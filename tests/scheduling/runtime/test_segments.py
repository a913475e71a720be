"""Neighbours are merged where a call costs more than it gains, and then read and return what they did."""

from __future__ import annotations

import pytest

from overlap_train.scheduling import CostModel, Device, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Work
from overlap_train.scheduling.segments import choose_segments, merge_layers, worth_cutting
from tests.scheduling.graphs import CORES, cut, times


def alternating(count):
    layers = [Layer(str(i), Work("conv" if i % 2 else "norm"), (Port(i - 1),)) for i in range(count)]
    return LayerGraph(layers, [Port(count - 1)])


TWO = Platform((Device("c"), Device("g", "gpu")))


def test_layers_are_merged_where_a_call_costs_more_than_it_gains():
    graph = alternating(10)
    costs = FixedCosts(lambda x, d: 1e-3 if (x.work.kind == "conv") == (d.kind == "gpu") else 1.5e-3)
    assert len(choose_segments(graph, TWO, costs, call_s=1e-4)) == 10
    assert len(choose_segments(graph, TWO, costs, call_s=6e-4)) < 10
    assert choose_segments(graph, Platform((Device("c"),)), costs) == [range(10)]


def test_a_segment_is_not_grown_beyond_its_longest():
    costs = FixedCosts(lambda x, d: 1e-3)
    groups = choose_segments(alternating(10), Platform((Device("c"),)), costs, longest_s=3.5e-3)
    assert [len(group) for group in groups] == [3, 3, 3, 1]


def test_segments_that_leave_layers_out_are_refused():
    with pytest.raises(ValueError, match="must cover layers 0 to 4"):
        merge_layers(alternating(5), [range(2), range(3, 5)])


def test_merging_needs_no_profile():
    assert choose_segments(alternating(4), TWO, CostModel())[0].start == 0


def test_a_follower_is_not_merged_where_the_whole_form_would_lose():
    """The join costs nothing anywhere; whole, the layer belongs on the GPU and its follower on the CPU."""
    graph = cut(2)
    milliseconds = {"x": (1, 40), "x/0": (1, 20), "x/1": (1, 20), "after": (10, 1)}

    def true_s(layer, device):
        return 1e-3 * milliseconds.get(layer.name, (0, 0))[device.kind == "cpu"]

    groups = choose_segments(graph, CORES, FixedCosts(true_s))
    assert groups[-2:] == [range(3, 4), range(4, 5)]


def test_a_segment_is_not_longer_in_one_piece_than_the_longest_may_be():
    graph, costs = cut(), FixedCosts(lambda layer, device: 0.009 if layer.name == "x" else 0.002)
    assert choose_segments(graph, CORES, costs)[-1] == range(5, 7)
    assert choose_segments(graph, CORES, costs, longest_s=0.01)[-1] == range(6, 7)


def test_a_join_merges_with_what_follows_in_both_forms():
    """The follower also reads something else, which the pieces do not."""
    whole = Layer("x", Work("conv", 8.0), (Port(0),))
    layers = [
        Layer("before", Work("pool", 1.0), (Port(-1),)),
        Layer("x/0", Work("conv", 4.0), (Port(0),), alone=True),
        Layer("x/1", Work("conv", 4.0), (Port(0),), alone=True),
        Layer("x/join", Work("merge", 1.0), (Port(1), Port(2)), whole=whole),
        Layer("add", Work("merge", 2.0), (Port(3), Port(-1))),
    ]
    graph = LayerGraph(layers, [Port(4)])
    groups = choose_segments(graph, CORES, CostModel(), call_s=1.0)
    assert groups == [range(1), range(1, 2), range(2, 3), range(3, 5)]
    merged = merge_layers(graph, groups)
    join = merged.graph.layers[3]
    assert (join.name, join.inputs) == ("x/join..add", (Port(1), Port(2), Port(-1)))
    assert (join.whole.name, join.whole.inputs) == ("x..add", (Port(0), Port(-1)))
    assert (join.work.flops, join.whole.work.flops) == (3.0, 10.0)
    assert merged.whole_inputs == ((), (), (), (Port(0), Port(-1)))
    assert merged.graph.joins == {1: 3, 2: 3}


def test_a_segment_returns_what_leaves_it_and_reads_each_tensor_once():
    def run(inputs):
        return inputs

    layers = [
        Layer("a", Work("conv", 1.0), (Port(-1),), (10, 20), {"c": run}),
        Layer("b", Work("norm", 2.0), (Port(0), Port(-1)), (30,)),
        Layer("c", Work("dense", 3.0), (Port(0, 1), Port(1), Port(0, 1)), (40,)),
    ]
    graph = LayerGraph(layers, [Port(2), Port(0)], input_bytes=(5,), name="n")
    merged = merge_layers(graph, [range(2), range(2, 3)])
    first, second = merged.graph.layers
    assert (first.name, first.work.flops, first.work.kind) == ("a..b", 3.0, "norm")
    assert (merged.inputs, merged.outputs) == (
        ((Port(-1),), (Port(0, 1), Port(1))),
        ((Port(0), Port(0, 1), Port(1)), (Port(2),)),
    )
    assert first.output_bytes == (10, 20, 30)
    assert second.inputs == (Port(0, 1), Port(0, 2))
    assert merged.graph.outputs == (Port(1), Port(0))
    assert merged.graph.input_bytes == (5,)
    assert first.runs == {}
    single = merge_layers(graph, [range(1), range(1, 2), range(2, 3)])
    assert single.graph.layers[0].runs == {"c": run}


@pytest.mark.parametrize(("gpu_s", "cpu_s", "gains"), [(1.0, 0.1, True), (1.0, 0.0005, False)])
def test_what_gains_a_quarter_in_pieces_is_worth_cutting(gpu_s, cpu_s, gains):
    assert worth_cutting(cut(), CORES, FixedCosts(times(gpu_s, cpu_s))) == ({"x"} if gains else set())


def test_a_gain_of_less_than_a_quarter_is_soon_lost():
    assert worth_cutting(cut(), CORES, FixedCosts(times(1.0, 1.0, pieces=1.25))) == set()
    assert worth_cutting(cut(), CORES, FixedCosts(times(1.0, 1.0, pieces=1.6))) == {"x"}


def test_pieces_gain_nothing_where_they_run_one_after_another():
    one_slot = Platform((Device("cpu"), Device("gpu", "gpu")))
    assert worth_cutting(cut(), one_slot, FixedCosts(times(1.0, 0.1))) == set()
