"""Layers merged into segments, compiled, and timed; and how what users pass becomes tensors."""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.scheduling import CostModel, Device, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Work
from overlap_train.scheduling.models import split_model
from overlap_train.scheduling.preparing import (
    ModelBuilder,
    Preparation,
    compile_segments,
    tensorflow_platform,
)
from overlap_train.scheduling.segments import choose_segments, merge_layers, worth_cutting
from tests.scheduling.graphs import CORES, cut, times
from tests.scheduling.test_splitting import ONE_CORE


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


def test_a_gain_of_less_than_a_quarter_is_soon_lost():
    assert worth_cutting(cut(), CORES, FixedCosts(times(1.0, 1.0, pieces=1.25))) == set()
    assert worth_cutting(cut(), CORES, FixedCosts(times(1.0, 1.0, pieces=1.6))) == {"x"}


ONE = [Device("CPU:0")]


def relus(layers=6):
    inputs = x = keras.Input((3,))
    for _ in range(layers):
        x = keras.layers.ReLU()(x)
    return keras.Model(inputs, x)


def built(model, costs=None, **preparation):
    builder = ModelBuilder(ONE, costs, Preparation(**preparation))
    return builder.build("m", model, 7, 3), builder


@pytest.mark.parametrize(
    ("segments", "lengths"),
    [("whole", [6]), ("layers", [1] * 6), (2, [3, 3]), (4, [2, 1, 1, 2]), (99, [1] * 6)],
)
def test_segments_are_as_asked_for(segments, lengths):
    model, _ = built(relus(), segments=segments)
    assert [len(layer.work.single_parts()) for layer in model.graph.layers] == lengths
    assert (model.name, model.max_pending, model.max_batch) == ("m", 7, 3)


def test_by_default_neighbours_on_one_device_are_one_segment():
    model, _ = built(relus())
    assert len(model.graph) == 1


@pytest.mark.parametrize(
    ("costs", "profile", "profiled"),
    [(None, None, False), (None, True, True), (CostModel(), None, False), (CostModel(), True, True)],
)
def test_layers_are_timed_one_by_one_where_it_was_asked_for(costs, profile, profiled, monkeypatch):
    singles = []
    stock = ModelBuilder._profile_single
    monkeypatch.setattr(
        ModelBuilder, "_profile_single", lambda self, *rest: singles.append(1) or stock(self, *rest)
    )
    _, builder = built(relus(2), costs, profile=profile)
    assert bool(singles) is profiled
    assert costs is None or builder.costs is costs


def test_costs_that_do_not_learn_are_left_alone():
    costs = FixedCosts(lambda layer, device: 1.0)
    _, builder = built(relus(2), costs, profile=True)
    assert builder.costs is costs
    with pytest.raises(TypeError, match="costs"):
        ModelBuilder(ONE, 3, Preparation())


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("segments", "some", ValueError),
        ("segments", 0, ValueError),
        ("segments", 1.5, TypeError),
        ("cut", 0, ValueError),
        ("longest_segment_s", -1.0, ValueError),
        ("constant_weights", "yes", TypeError),
        ("profile", "yes", TypeError),
        ("zero_copy", None, TypeError),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(name, value, error):
    with pytest.raises(error, match=f"{name} must be"):
        Preparation(**{name: value})


def test_a_cut_is_not_put_together_again():
    assert Preparation(cut=2, segments="layers").cut == 2
    with pytest.raises(ValueError, match="cut=2 needs segments='auto' or 'layers'; 'whole' would put"):
        Preparation(cut=2, segments="whole")


@pytest.mark.parametrize("zero_copy", [False, True])
def test_tensors_lie_on_the_host_and_in_place_where_that_is_asked_for(zero_copy):
    builder = ModelBuilder(ONE, None, Preparation(zero_copy=zero_copy))
    array = np.frombuffer(bytearray(4 * 64), "float32")  # which may not be aligned
    ones = np.ones((8, 8), "float32")
    for given in (array, ones):
        (tensor,) = builder.tensors((given,))
        assert tensor.device.endswith("CPU:0")
        np.testing.assert_array_equal(tensor, given)


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ([Device("CPU:77")], ValueError, r"no device \['CPU:77'\]"),
        ((), ValueError, "devices is empty"),
        (["CPU:0"], TypeError, r"devices.* must be a .*Device"),
    ],
)
def test_devices_that_tensorflow_lacks_are_refused(devices, error, message):
    with pytest.raises(error, match=message):
        tensorflow_platform(devices)


def test_by_default_the_cpu_has_a_slot_for_each_core():
    platform = tensorflow_platform()
    assert platform["CPU:0"].slots == len(os.sched_getaffinity(0))
    assert [device.name for device in platform.of_kind("cpu")] == ["CPU:0"]


def small():
    inputs = keras.Input((3,))
    x = keras.layers.Dense(2, kernel_initializer="ones", name="d")(inputs)
    return keras.Model(inputs, keras.layers.ReLU()(x))


@pytest.mark.parametrize("constant", [False, True])
def test_constant_weights_are_those_of_the_moment(constant):
    model = small()
    split = split_model(model)
    graph = compile_segments(
        split, merge_layers(split.graph, [range(2)]), ONE_CORE, constant_weights=constant
    )
    (segment,) = graph.layers
    run = segment.runs["CPU:0"]
    assert [(spec.shape.as_list(), spec.dtype) for spec in run.specs] == [([None, 3], tf.float32)]
    (before,) = run((tf.ones((1, 3)),))
    model.layers[1].kernel.assign(model.layers[1].kernel * 2.0)
    (after,) = run((tf.ones((1, 3)),))
    assert before.numpy().tolist() == [[3.0, 3.0]]
    assert after.numpy().tolist() == ([[3.0, 3.0]] if constant else [[6.0, 6.0]])
