"""Convolutions by 1x1 filters with strides of 1, as products of matrices.

They are the same sums. Where the images are small and the channels many, TensorFlow's convolution spends more
time on preparing such a product than on the product.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["filter_gradient", "forward", "input_gradient"]


def forward(x: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor | None, *, relu: bool) -> tf.Tensor:
    """Computes [batch, height, width, out_channels] from filters [1, 1, in_channels, out_channels]."""
    y = tf.matmul(_rows(x), _matrix(filters))
    if bias is not None:
        y = tf.nn.bias_add(y, bias)
    if relu:
        y = tf.nn.relu(y)
    return tf.reshape(y, [-1, x.shape[1], x.shape[2], filters.shape[3]])


def input_gradient(shape: Any, filters: tf.Tensor, dz: tf.Tensor) -> tf.Tensor:
    """Computes the gradient to the input, of the given shape."""
    return tf.reshape(tf.matmul(_rows(dz), _matrix(filters), transpose_b=True), shape)


def filter_gradient(x: tf.Tensor, shape: Any, dz: tf.Tensor) -> tf.Tensor:
    """Computes the gradient to the filters, of the given shape."""
    return tf.reshape(tf.matmul(_rows(x), _rows(dz), transpose_a=True), shape)


def _rows(image: tf.Tensor) -> tf.Tensor:
    return tf.reshape(image, [-1, image.shape[3]])


def _matrix(filters: tf.Tensor) -> tf.Tensor:
    return tf.reshape(filters, filters.shape[2:])
