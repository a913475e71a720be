"""The names of TensorFlow's on which the inspection leans; each test says what broke if one moves."""

import keras
import pytest
import tensorflow as tf

from overlap_train._inspection.computation import computation
from overlap_train._inspection.graph import (
    arithmetic,
    call_with,
    handle_spec,
    iterator_over_nothing,
    written_inputs,
)

VARIABLE = tf.Variable([1.0, 2.0])


def concrete(function, *specs):
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def test_inference_fn_takes_other_captures():
    traced, other = concrete(lambda x: x * VARIABLE, tf.TensorSpec([])), tf.Variable([5.0, 6.0])
    result = call_with(traced, [tf.constant(2.0)], {id(VARIABLE.handle): other.handle})
    assert result.numpy().tolist() == [10.0, 12.0]


def test_handle_data_tells_variables_from_other_resources():
    assert handle_spec(VARIABLE.handle) == (tf.float32, tf.TensorShape([2]))
    assert handle_spec(tf.constant(1.0)) is None
    iterator = iter(tf.data.Dataset.range(2))
    assert handle_spec(iterator._iterator_resource) is None


def test_an_iterator_over_nothing_is_of_the_kind_that_a_dataset_makes():
    """OwnedIterator, get_flat_tensor_types, get_flat_tensor_shapes."""
    dataset = tf.data.Dataset.from_tensor_slices((tf.zeros([4, 2]), {"y": tf.zeros([4], tf.int64)})).batch(2)
    assert iterator_over_nothing(dataset.element_spec).element_spec == iter(dataset).element_spec


def test_read_only_inputs_are_known():
    def body(x):
        VARIABLE.assign_add([x, x])
        return x

    assert written_inputs(concrete(lambda x: x * VARIABLE, tf.TensorSpec([])).graph) == set()
    assert written_inputs(concrete(body, tf.TensorSpec([])).graph) == {1}


def network(names, *, nested=False, activation="relu"):
    layers = [keras.layers.Dense(4, activation, name=name) for name in names]
    model = keras.Sequential([keras.Input((3,)), *layers])
    call = tf.function(model) if nested else model
    return tf.function(call).get_concrete_function(tf.TensorSpec([2, 3])).graph


@pytest.mark.parametrize("nested", [False, True])
def test_a_computation_is_the_same_whatever_its_layers_are_called(nested):
    """TensorFlow sorts the control inputs of an operation by name: "dense_10" before "dense_9"."""
    first = computation(network(["dense_8", "dense_9", "a"], nested=nested))
    for names in (["dense_9", "dense_10", "b"], ["c", "b", "a"], ["dense_99", "dense_100", "dense_101"]):
        assert computation(network(names, nested=nested)) == first


def test_another_computation_is_seen():
    names = ["dense_8", "dense_9"]
    graphs = [(names, {}), (names[:1], {}), (names, {"activation": "tanh"}), (names, {"nested": True})]
    graphs.append((names, {"nested": True, "activation": "tanh"}))
    computations = [computation(network(names, **options)) for names, options in graphs]
    assert len(set(computations)) == len(graphs)


def test_what_an_assertion_would_print_is_no_part_of_a_computation():
    """Messages tell the names of tensors, and so those of the layers around them."""

    def graph_of(message, limit=0.0):
        def checked(x):
            tf.debugging.assert_greater(x, limit, message=message)
            return x

        return concrete(checked, tf.TensorSpec([2])).graph

    assert computation(graph_of("in dense_9")) == computation(graph_of("in dense_10"))
    assert computation(graph_of("in dense_9")) != computation(graph_of("in dense_9", limit=1.0))


@pytest.mark.parametrize(
    ("product", "shapes", "expected"),
    [
        (tf.matmul, [(None, 12), (12, 8)], 2 * 32 * 12 * 8),
        (tf.matmul, [(None, 4, 6, 5), (None, 4, 5, 7)], 2 * 32 * 4 * 6 * 5 * 7),
        (tf.add, [(None, 12), (None, 12)], 0),
    ],
    ids=["rows of a batch", "matrices of a batch", "no product"],
)
def test_the_arithmetic_of_products_is_counted(product, shapes, expected):
    graph = concrete(product, *map(tf.TensorSpec, shapes)).graph
    assert arithmetic(graph, 32) == pytest.approx(expected)
