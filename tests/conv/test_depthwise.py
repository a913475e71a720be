"""A depthwise convolution with our gradient of the filters beside TensorFlow's, once and twice derived."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train.conv.depthwise import DepthwiseConvolution

RNG = np.random.default_rng(8)
pytestmark = pytest.mark.usefixtures("native")


def numbers(*shape: int) -> tf.Tensor:
    return tf.constant(RNG.normal(size=shape), "float32")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(
    ("image", "window"),
    [((3, 9, 7, 20), (3, 3)), ((2, 6, 11, 67), (5, 2)), ((5, 1, 1, 130), (1, 1)), ((0, 4, 4, 16), (3, 3))],
    ids=str,
)
def test_gradients_are_those_of_tensorflow(padding, stride, image, window):
    x, filters = numbers(*image), numbers(*window, image[3], 1)
    results = []
    for convolve in (
        DepthwiseConvolution(stride, padding),
        lambda x, filters: tf.nn.depthwise_conv2d(x, filters, [1, stride, stride, 1], padding),
    ):
        if image[1] < window[0] and padding == "VALID":
            pytest.skip("no window fits")
        with tf.GradientTape() as tape:
            tape.watch([x, filters])
            y = convolve(x, filters)
            loss = tf.reduce_sum(tf.sin(y))
        results.append([y, *tape.gradient(loss, [x, filters])])
    if not image[0]:  # TensorFlow leaves this gradient uninitialised without oneDNN
        results[1][2] = tf.zeros_like(filters)
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_derivatives_of_derivatives_are_those_of_tensorflow():
    x, filters, weights = (numbers(2, 5, 6, 20), numbers(3, 3, 20, 1), numbers(3, 3, 20, 1))
    results = []
    for convolve in (
        DepthwiseConvolution(2, "SAME"),
        lambda x, filters: tf.nn.depthwise_conv2d(x, filters, [1, 2, 2, 1], "SAME"),
    ):
        with tf.GradientTape() as outer:
            outer.watch([x, filters])
            with tf.GradientTape() as inner:
                inner.watch(filters)
                loss = tf.reduce_sum(tf.square(convolve(x, filters)))
            penalty = tf.reduce_sum(inner.gradient(loss, filters) * weights)
        results.append(outer.gradient(penalty, [x, filters]))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
