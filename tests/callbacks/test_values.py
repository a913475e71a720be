"""What callbacks keep is copied, and put back where it was."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from overlap_train._callbacks.placing import put_back
from overlap_train._callbacks.values import Resource, VariableValue, copied
from tests.callbacks.strategies import VALUES


@given(value=VALUES, live=VALUES)
@settings(max_examples=60, deadline=None)
def test_putting_back_gives_the_value_and_spares_the_copy(value, live):
    kept = copied(value)
    assert put_back(live, kept, in_place=True) == value
    assert kept == value


@pytest.mark.parametrize(
    "value",
    [np.array([None]), np.ma.masked_array([1]), tf.constant("text"), tf.ragged.constant([[1], []]), object()],
    ids=["objects", "masked", "text tensor", "ragged", "object"],
)
def test_values_of_other_kinds_are_resources(value):
    with pytest.raises(Resource):
        copied(value)


def test_variables_are_captured_without_a_copy_of_their_buffer():
    variable = keras.Variable(np.zeros(1000, np.float32))
    value = copied(variable)
    assert isinstance(value, VariableValue)
    variable.assign_add(np.ones(1000, np.float32))
    assert float(tf.reduce_max(value.tensor)) == 0.0


@pytest.mark.parametrize(
    ("value", "constant"),
    [
        (print, True),
        ([print, len], True),
        ([print, 3], False),
        ({"function": print}, True),
        (object(), False),
        ((i for i in range(3)), False),
        (keras.losses.MeanSquaredError(), True),
        (tf.data.Dataset.range(3), True),
    ],
    ids=["code", "codes", "code and a number", "named code", "object", "iterator", "loss", "dataset"],
)
def test_a_resource_says_whether_anything_is_lost(value, constant):
    with pytest.raises(Resource) as caught:
        copied(value)
    assert caught.value.constant is constant


def test_a_container_in_too_many_others_is_a_resource():
    value = []
    for _ in range(400):
        value = [value]
    with pytest.raises(Resource, match="in more than 60 others"):
        copied(value)
