"""Keras models split and merged compute what they did whole."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.graph import Port
from overlap_train.scheduling.models import split_model
from overlap_train.scheduling.preparing import compile_segments
from overlap_train.scheduling.segments import merge_layers

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
