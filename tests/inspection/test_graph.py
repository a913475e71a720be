"""The names of TensorFlow's on which the inspection leans; each test says what broke if one moves."""

from __future__ import annotations

import tensorflow as tf

from overlap_train._inspection.graph import call_with, handle_spec, nested_operations, written_inputs

VARIABLE = tf.Variable([1.0, 2.0])


def concrete(function, *specs):
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def test_inference_fn_takes_other_captures():
    traced, other = concrete(lambda x: x * VARIABLE, tf.TensorSpec([])), tf.Variable([5.0, 6.0])
    result = call_with(traced, [tf.constant(2.0)], [other.handle])
    assert result.numpy().tolist() == [10.0, 12.0]


def test_handle_data_tells_variables_from_other_resources():
    assert handle_spec(VARIABLE.handle) == (tf.float32, tf.TensorShape([2]))
    assert handle_spec(tf.constant(1.0)) is None
    iterator = iter(tf.data.Dataset.range(2))
    assert handle_spec(iterator._iterator_resource) is None


def test_read_only_inputs_are_known():
    def body(x):
        VARIABLE.assign_add([x, x])
        return x

    assert written_inputs(concrete(lambda x: x * VARIABLE, tf.TensorSpec([])).graph) == set()
    assert written_inputs(concrete(body, tf.TensorSpec([])).graph) == {1}


def test_operations_of_nested_functions_are_listed():
    inner = tf.function(lambda x: tf.random.normal([]) + x, autograph=False)
    kinds = {kind for kind, _, _ in nested_operations(concrete(lambda x: inner(x), tf.TensorSpec([])).graph)}
    assert "RandomStandardNormal" in kinds
