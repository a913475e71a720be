"""Outputs that were put together from parts tell a loss their logits and masks, as those in one piece do."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras import replicas as keras_replicas
from overlap_train._training.parts import Outputs

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
