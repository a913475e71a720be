"""What every split of a model knows: how its outputs are nested, and what holds a batch."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train.scheduling.models import spec_of, split_model


def split_of(outputs):
    inputs = keras.Input((4,))
    return split_model(keras.Model(inputs, outputs(inputs)))


@pytest.mark.parametrize(
    ("outputs", "packed"),
    [
        (lambda x: x * 2.0, 1),
        (lambda x: [x * 2.0], 1),
        (lambda x: [[x * 2.0]], [1]),
        (lambda x: (x * 2.0, x), (1, 2)),
        (lambda x: {"b": x, "a": [x * 2.0]}, {"b": 2, "a": [1]}),
    ],
    ids=["one", "list", "nested-list", "tuple", "dict"],
)
def test_outputs_are_packed_as_keras_nests_them(outputs, packed):
    split = split_of(outputs)
    assert split.pack([1, 2][: len(split.graph.outputs)]) == packed


@pytest.mark.parametrize(
    ("outputs", "keeps"),
    [
        (lambda x: x * 2.0, True),
        (lambda x: [x, keras.ops.sum(x)], False),
        (keras.ops.transpose, False),
    ],
    ids=["rows", "a-number", "columns"],
)
def test_an_output_without_the_batch_in_front_cannot_be_divided(outputs, keeps):
    assert split_of(outputs).keeps_rows is keeps


def test_the_batch_is_free_and_a_number_has_none():
    assert spec_of(keras.KerasTensor((7, 3), "int32")) == tf.TensorSpec((None, 3), tf.int32)
    assert spec_of(keras.KerasTensor(())) == tf.TensorSpec((), tf.float32)
