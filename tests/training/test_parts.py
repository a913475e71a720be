"""Parts of a batch draw and put together what the whole batch would have."""

from __future__ import annotations

import contextlib
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras import replicas as keras_replicas
from overlap_train._training.parts import Outputs, dropout_layers, whole_batch_dropout

ROWS, WIDTH = 6, 5
X = tf.constant(np.arange(1.0, ROWS * WIDTH + 1).reshape(ROWS, WIDTH), tf.float32)


def dropping(*, twice=False, seed=3):
    inputs = keras.Input((WIDTH,))
    drop = keras.layers.Dropout(0.5, seed=seed)
    outputs = drop(inputs)
    return keras.Model(inputs, drop(outputs) if twice else outputs)


def in_parts(model, *bounds, rows=ROWS, masks=None):
    masks = {} if masks is None else masks
    with contextlib.ExitStack() as patches:
        begin_part = whole_batch_dropout(model, patches)
        parts = []
        for begin, end in itertools.pairwise(bounds):
            begin_part(rows, begin, end, masks)
            parts.append(model(X[begin:end], training=True))
    return tf.concat(parts, 0)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("bounds", [(0, 6), (0, 2, 6), (0, 1, 3, 6)])
def test_parts_get_the_random_numbers_of_the_whole_batch(bounds, twice):
    whole, parted = dropping(twice=twice), dropping(twice=twice)
    np.testing.assert_array_equal(in_parts(parted, *bounds), whole(X, training=True))
    # Also the numbers after that: the generator has been drawn from once for each call.
    np.testing.assert_array_equal(parted(X, training=True), whole(X, training=True))


def test_each_call_of_a_shared_layer_has_a_mask_of_its_own():
    masks = {}
    in_parts(dropping(twice=True), 0, 2, 6, masks=masks)
    assert sorted(call for _, call in masks) == [0, 1]
    first, second = (tf.cast(mask > 0, tf.int32) for mask in masks.values())
    assert (first.numpy() != second.numpy()).any()


def test_what_has_no_row_for_each_of_the_batch_has_one_mask_for_all_parts():
    layer = keras.layers.Dropout(0.5, seed=3)
    model = keras.Sequential([keras.Input((WIDTH,)), layer])
    table = tf.ones([3, WIDTH])  # such as of positions
    masks = {}
    with contextlib.ExitStack() as patches:
        begin_part = whole_batch_dropout(model, patches)
        results = []
        for begin, end in ((0, 2), (2, 6)):
            begin_part(ROWS, begin, end, masks)
            results.append(layer(table, training=True))
    np.testing.assert_array_equal(*results)
    (mask,) = masks.values()
    assert mask.shape == (3, WIDTH)


def test_nothing_is_dropped_and_drawn_where_nothing_is_trained():
    model = dropping()
    with contextlib.ExitStack() as patches:
        begin_part = whole_batch_dropout(model, patches)
        masks = {}
        begin_part(ROWS, 0, ROWS, masks)
        np.testing.assert_array_equal(model(X, training=False), X)
    assert masks == {}


def test_layers_are_as_before_afterwards_however_it_ends():
    model = dropping()
    (layer,) = dropout_layers(model)

    def fail():
        with contextlib.ExitStack() as patches:
            whole_batch_dropout(model, patches)
            assert "call" in vars(layer)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "call" not in vars(layer)


class OwnDropout(keras.layers.Dropout):
    pass


def test_only_dropout_itself_that_drops_something_is_known():
    drop = keras.layers.Dropout(0.5)
    layers = [drop, keras.layers.Dropout(0.0), OwnDropout(0.5), keras.layers.SpatialDropout1D(0.5), drop]
    model = keras.Sequential([keras.Input((4, WIDTH)), *layers[:-1]])
    nested = keras.Sequential([keras.Input((4, WIDTH)), model, keras.layers.Dense(2)])
    assert dropout_layers(nested) == [drop]


LOGITS = np.array([[0.5, -1.0, 2.0], [90.0, 0.0, -90.0]], "float32")
LABELS = tf.constant([0, 2])


def traced(function):
    """Returns what a function of the logits returns while it is traced, as arrays."""
    return tf.function(function, autograph=False)(tf.constant(LOGITS))


def joined(outputs):
    """Returns the outputs made of their own tensors, row by row."""
    halves = [[tensor[:1] for tensor in outputs.tensors], [tensor[1:] for tensor in outputs.tensors]]
    return outputs.of([tf.concat(pair, 0) for pair in zip(*halves, strict=True)])


def loss_of(probabilities):
    return keras.losses.SparseCategoricalCrossentropy(reduction=None)(LABELS, probabilities)


def test_plain_outputs_are_copied_as_they_are_nested():
    def make(logits):
        made = joined(Outputs({"a": logits, "b": [logits + 1.0, None]}))
        assert made["b"][1] is None
        assert made["a"] is not logits
        return made["a"], made["b"][0]

    first, second = traced(make)
    np.testing.assert_array_equal(first, LOGITS)
    np.testing.assert_array_equal(second, LOGITS + 1)


def test_a_crossentropy_of_saturated_probabilities_is_computed_from_the_logits_under_them():
    def make(logits):
        probabilities = tf.nn.softmax(logits)
        made = joined(Outputs(probabilities))
        assert made.op.type == "Softmax"
        return loss_of(probabilities), loss_of(made), tf.reduce_max(tf.abs(made - probabilities))

    expected, actual, difference = traced(make)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert float(expected[1]) > 100.0  # a probability of 0 would give some 16
    assert float(difference) == 0.0


def test_a_sigmoid_keeps_its_logits_too():
    def make(logits):
        probabilities = tf.sigmoid(logits[:, :1])
        made = joined(Outputs(probabilities))
        return [
            keras.losses.BinaryCrossentropy(reduction=None)(tf.zeros([2, 1]), p)
            for p in (probabilities, made)
        ]

    expected, actual = traced(make)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert float(expected[1]) > 50.0


def test_logits_and_masks_that_layers_have_set_are_put_together_as_well():
    def make(logits):
        output = tf.identity(logits)
        keras_replicas.set_logits(output, logits * 2.0)
        keras_replicas.set_mask(output, logits[:, 0] > 1.0)
        outputs = Outputs(output)
        assert len(outputs.tensors) == 3
        made = joined(outputs)
        return keras_replicas.logits_of(made), keras_replicas.mask_of(made)

    logits, mask = traced(make)
    np.testing.assert_array_equal(logits, LOGITS * 2)
    np.testing.assert_array_equal(mask, [False, True])


def test_gradients_go_to_what_a_loss_looks_at():
    def make(logits):
        outputs = Outputs(tf.nn.softmax(logits))
        (seen,) = outputs.tensors
        with tf.GradientTape() as tape:
            tape.watch(seen)
            loss = tf.reduce_sum(loss_of(outputs.of([seen])))
        return tape.gradient(loss, seen)

    gradient = traced(make)
    expected = np.exp(LOGITS - LOGITS.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    expected[[0, 1], [0, 2]] -= 1
    np.testing.assert_allclose(gradient, expected, atol=1e-6)
