"""The calls of a functional model in Keras's order, and what each of them costs."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train.scheduling.calls import calls_of, elements, tensor_bytes, work_of
from overlap_train.scheduling.models import split_model

kl = keras.layers


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


def work_for(layer, *shape, dtype="float32"):
    x = keras.Input(shape, dtype=dtype)
    return work_of(layer, [x], [layer(x)])


@pytest.mark.parametrize(
    ("layer", "shape", "kind", "flops"),
    [
        (kl.Conv1D(4, 3, padding="same", use_bias=False), (8, 2), "conv", 2 * 8 * 4 * 6),
        (kl.Conv2DTranspose(4, 2, strides=2, use_bias=False), (3, 3, 2), "conv", 2 * 36 * 4 * 8),
        (
            kl.SeparableConv2D(4, 3, padding="same", use_bias=False),
            (5, 5, 2),
            "conv",
            2 * 25 * (9 * 2 + 2 * 4),
        ),
        (kl.Dense(4, use_bias=False), (7, 3), "dense", 2 * 7 * 12),
        (kl.BatchNormalization(), (6,), "norm", 6),
        (kl.ReLU(), (6,), "activation", 6),
        (kl.MaxPooling2D(), (4, 4, 3), "pool", 12),
        (kl.GlobalAveragePooling2D(), (4, 4, 3), "reduce", 3),
        (kl.Flatten(), (2, 3), "reshape", 6),
        (kl.Lambda(lambda x: x), (6,), "other", 6),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, kl.Layer) else None,
)
def test_each_kind_of_layer_has_its_operations(layer, shape, kind, flops):
    work = work_for(layer, *shape)
    assert (work.kind, work.flops) == (kind, flops)


def test_bytes_are_those_of_inputs_outputs_and_weights():
    work = work_for(kl.Dense(4), 3)
    assert (work.moved_bytes, work.weight_bytes) == (4 * (3 + 4), 4 * (12 + 4))
    assert work_for(kl.Embedding(10, 4), 5, dtype="int64").moved_bytes == 8 * 5 + 4 * 20


def test_a_size_that_is_not_known_counts_one():
    assert (elements((None, 3)), elements(())) == (3, 1)
    assert tensor_bytes(keras.Input((None, 3), dtype="float16")) == 6


def test_a_layer_that_is_called_twice_is_two_calls():
    inputs, shared = keras.Input((3,)), kl.Dense(3, name="shared")
    model = keras.Model(inputs, kl.Add(name="sum")([shared(inputs), shared(shared(inputs))]))
    names = [call.name for call in calls_of(model)]
    assert sorted(names) == ["shared", "shared", "shared", "sum"]
    assert names[-1] == "sum"


class Trains(kl.Layer):
    """Does something else in training, which is its default."""

    def call(self, x, training=True):
        return x * 9.0 if training else x


def test_a_call_runs_as_in_inference_with_its_arguments_in_their_places():
    inputs = keras.Input((3,))
    dropped = Trains(name="trains")(inputs)
    outputs = kl.Subtract()([dropped, inputs * 2.0])
    for call in calls_of(keras.Model(inputs, outputs)):
        values = call.run([tf.fill((1, 3), float(n + 1)) for n in range(len(call.inputs))])
        assert len(values) == len(call.outputs)
        if call.name == "trains":
            assert values[0].numpy().tolist() == [[1.0] * 3]
        if call.name.startswith("subtract"):
            assert values[0].numpy().tolist() == [[-1.0] * 3]
