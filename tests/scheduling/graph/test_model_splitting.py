"""Keras models split and merged compute what they did whole."""

from __future__ import annotations

import pytest

from overlap_train.scheduling import CostModel, Device, Platform
from overlap_train.scheduling.costs.model import FixedCosts
from overlap_train.scheduling.graph.layers import Layer, LayerGraph, Port, Work
from overlap_train.scheduling.runtime.segments import choose_segments, merge_layers

keras = pytest.importorskip("keras", reason="needs Keras")
tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
np = pytest.importorskip("numpy")

from overlap_train.scheduling.graph.model_splitting import split_model
from overlap_train.scheduling.runtime.tensorflow_backend import (
    compile_segments,
    profile_layers,
    tensorflow_platform,
)

ONE_CORE = Platform((Device("CPU:0"),))


def branching_model():
    left, right = keras.Input((8, 8, 3), name="left"), keras.Input((4,), name="right")
    shared = keras.layers.Conv2D(4, 3, padding="same", name="shared")
    a = shared(left)
    b = keras.layers.BatchNormalization()(shared(left[:, ::-1] * 2.0))
    merged = keras.layers.GlobalAveragePooling2D()(keras.layers.Concatenate()([a, b]))
    dense = keras.layers.Dense(4)(right) + merged[:, :4]
    return keras.Model({"left": left, "right": right}, {"sum": dense, "map": keras.layers.ReLU()(a)})


def run(graph, inputs, device="CPU:0"):
    tensors = {Port(-1, n): x for n, x in enumerate(inputs)}
    for index, layer in enumerate(graph.layers):
        outputs = layer.runs[device](tuple(tensors[port] for port in layer.inputs))
        tensors.update({Port(index, n): y for n, y in enumerate(outputs)})
    return [tensors[port].numpy() for port in graph.outputs]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("constant", [False, True])
def test_branches_shared_layers_several_inputs_and_outputs_survive(size, constant):
    model = branching_model()
    rng = np.random.default_rng(0)
    inputs = {"left": rng.random((2, 8, 8, 3), "float32"), "right": rng.random((2, 4), "float32")}
    split = split_model(model)
    count = len(split.graph)
    groups = [range(begin, min(begin + size, count)) for begin in range(0, count, size)]
    graph = compile_segments(split, merge_layers(split.graph, groups), ONE_CORE, constant_weights=constant)
    got = run(graph, [tf.constant(inputs[k]) for k in ("left", "right")])
    want = keras.tree.flatten(model(inputs, training=False))
    for left, right in zip(got, want, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


def test_dropout_and_batch_statistics_are_those_of_inference():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dropout(0.9),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(2),
        ]
    )
    x = np.ones((3, 4), "float32")
    split = split_model(model)
    every = [range(i, i + 1) for i in range(len(split.graph))]
    graph = compile_segments(split, merge_layers(split.graph, every), ONE_CORE)
    np.testing.assert_allclose(run(graph, [tf.constant(x)])[0], model(x, training=False), atol=1e-6)


def test_functions_follow_the_weights_unless_they_are_constant():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    split = split_model(model)
    whole = merge_layers(split.graph, [range(len(split.graph))])
    following, constant = (
        compile_segments(split, whole, ONE_CORE, constant_weights=c) for c in (False, True)
    )
    x = tf.ones((1, 2))
    before = model(x).numpy()
    model.layers[-1].kernel.assign(model.layers[-1].kernel + 1.0)
    np.testing.assert_allclose(run(following, [x])[0], before + 2.0, atol=1e-6)
    np.testing.assert_allclose(run(constant, [x])[0], before, atol=1e-6)


def test_masks_keep_a_network_whole():
    tokens = keras.Input((5,), dtype="int32")
    x = keras.layers.LSTM(3)(keras.layers.Embedding(10, 4, mask_zero=True)(tokens))
    model = keras.Model(tokens, x)
    split = split_model(model)
    assert len(split.graph) == 1
    graph = compile_segments(split, merge_layers(split.graph, [range(1)]), ONE_CORE)
    ids = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 7]], "int32")
    np.testing.assert_allclose(run(graph, [tf.constant(ids)])[0], model(ids), atol=1e-6)


def test_a_subclassed_model_is_one_layer_and_must_say_what_it_reads():
    class Twice(keras.Model):
        def call(self, x):
            return x * 2.0

        def compute_output_shape(self, shape):
            return shape

    with pytest.raises(ValueError, match="pass input_specs"):
        split_model(Twice())
    split = split_model(Twice(), input_specs=(tf.TensorSpec((None, 3)),))
    graph = compile_segments(split, merge_layers(split.graph, [range(1)]), ONE_CORE)
    assert run(graph, [tf.ones((2, 3))])[0].tolist() == [[2.0] * 3] * 2


def test_work_counts_two_operations_for_each_multiply_add():
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, padding="same", use_bias=False, name="c")(inputs)
    x = keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="d")(x)
    x = keras.layers.Dense(5, use_bias=False, name="f")(keras.layers.Flatten()(x))
    works = {
        layer.name.split("/")[1]: layer.work for layer in split_model(keras.Model(inputs, x)).graph.layers
    }
    assert works["c"].kind == "conv"
    assert works["c"].flops == 2 * 64 * 4 * 27
    assert works["c"].weight_bytes == 4 * 4 * 27
    assert works["c"].moved_bytes == 4 * 64 * (3 + 4)
    assert (works["d"].kind, works["d"].flops) == ("depthwise", 2 * 64 * 4 * 9)
    assert (works["f"].kind, works["f"].flops) == ("dense", 2 * 256 * 5)


def test_a_nested_model_is_one_layer_with_the_work_of_all_its_own():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(4)], name="inner")
    inputs = keras.Input((4,))
    split = split_model(keras.Model(inputs, keras.layers.ReLU()(inner(inputs))))
    assert [len(layer.work.single_parts()) for layer in split.graph.layers] == [2, 1]


def test_profile_times_every_layer_on_every_device():
    split = split_model(branching_model())
    every = [range(i, i + 1) for i in range(len(split.graph))]
    graph = compile_segments(split, merge_layers(split.graph, every), ONE_CORE)
    measured = profile_layers(graph, ONE_CORE)
    assert [layer.name for layer, _, _ in measured] == [layer.name for layer in graph.layers]
    assert all(0 < seconds < 10 for _, _, seconds in measured)


def test_devices_that_tensorflow_lacks_are_refused():
    with pytest.raises(ValueError, match=r"no device \['CPU:77'\]"):
        tensorflow_platform([Device("CPU:77")])


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
