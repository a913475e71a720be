"""1x1 convolutions as matrix products: TensorFlow's numbers, and when they are taken."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from overlap_train.conv import selection
from overlap_train.conv.convolution import Convolution
from overlap_train.conv.shapes import DIRECTIONS, MATMUL, STOCK, ConvKey

RNG = np.random.default_rng(4)
KEY = ConvKey("forward", "float32", (2, 8, 8, 3), (1, 1, 3, 5), (1, 1), "SAME")


def numbers(*shape: int, dtype: str = "float64") -> tf.Tensor:
    return tf.constant(RNG.normal(size=shape), dtype)


@pytest.fixture
def _as_products(monkeypatch):
    monkeypatch.setattr(selection, "choose", lambda key, compute: MATMUL)


@pytest.mark.usefixtures("native", "_as_products")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_value_and_gradients_are_those_of_tensorflow(bias, relu, batch, padding):
    x, filters, offsets = numbers(2, 3, 4, 6), numbers(1, 1, 6, 5), numbers(5 if bias else 0)

    def stock(x, filters, offsets):
        y = tf.nn.conv2d(x, filters, 1, padding)
        y = tf.nn.bias_add(y, offsets) if bias else y
        return tf.nn.relu(y) if relu else y

    results = []
    for compute in (Convolution((1, 1), padding, relu=relu, bias=bias), stock):

        @tf.function(input_signature=[tf.TensorSpec([batch, 3, 4, 6], tf.float64)], autograph=False)
        def step(x, compute=compute):
            with tf.GradientTape() as tape:
                tape.watch([x, filters, offsets])
                y = compute(x, filters, offsets)
                loss = tf.reduce_sum(tf.sin(y))
            return y, tape.gradient(loss, [x, filters, offsets][: 3 if bias else 2])

        y, gradients = step(x)
        results.append([y, *gradients])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("native", "_as_products")
def test_gradients_of_a_function_that_forgets_shapes():
    @tf.custom_gradient
    def forgetful(y):
        def gradient(dy):
            return tf.numpy_function(lambda value: value, [dy], dy.dtype)

        return tf.identity(y), gradient

    x, filters = numbers(2, 3, 4, 6), numbers(1, 1, 6, 5)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            tape.watch([x, filters])
            y = Convolution((1, 1), "SAME", relu=False, bias=False)(x, filters, tf.zeros([0], x.dtype))
            loss = tf.reduce_sum(tf.sin(forgetful(y)))
        return tape.gradient(loss, [x, filters])

    with tf.GradientTape() as tape:
        tape.watch([x, filters])
        loss = tf.reduce_sum(tf.sin(tf.nn.conv2d(x, filters, 1, "SAME")))
    for ours, theirs in zip(step(), tape.gradient(loss, [x, filters]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, MATMUL),
        ({"input_shape": (2, 64, 64, 3)}, STOCK),
        ({"strides": (2, 2)}, STOCK),
        ({"strides": (1, 2)}, STOCK),
        ({"filter_shape": (3, 3, 3, 5)}, STOCK),
        ({"filter_shape": (1, 2, 3, 5)}, STOCK),
    ],
    ids=str,
)
def test_what_nobody_has_timed_is_a_product_where_its_rows_are_few(changes, expected):
    selection.clear_timings()
    for direction in DIRECTIONS:
        key = dataclasses.replace(KEY, direction=direction, **changes)
        missing: set[ConvKey] = set()
        with selection.only_known(missing):
            assert selection.choose(key, None) == expected
        assert missing == {key}, "the planner may still time it"


def test_an_empty_batch_is_no_product():
    assert selection.choose(dataclasses.replace(KEY, input_shape=(0, 8, 8, 3)), None) != MATMUL
