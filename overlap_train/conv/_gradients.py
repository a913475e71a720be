"""Derivatives of the native operations, registered with TensorFlow on import.

The first derivative uses our operations, the derivatives of those TensorFlow's: second derivatives of a
convolution are convolutions too, but seldom enough that their speed does not count.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from overlap_train.conv import library

__all__ = ["bias_gradient"]


def bias_gradient(dz: tf.Tensor) -> tf.Tensor:
    """Sums [batch, height, width, channels] over the pixels, row by row: one long sum would lose digits."""
    return tf.reduce_sum(tf.reduce_sum(dz, 2), [0, 1])


def _window(op: Any) -> dict[str, Any]:
    return {"strides": list(op.get_attr("strides")), "padding": op.get_attr("padding").decode()}


def _stock_window(op: Any) -> dict[str, Any]:
    height, width = op.get_attr("strides")
    return {"strides": [1, height, width, 1], "padding": op.get_attr("padding").decode()}


@tf.RegisterGradient("OverlapTiledConv2D")  # type: ignore[untyped-decorator]
def _forward_gradient(op: Any, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    operations = library.load()
    x, filters, bias = op.inputs
    if op.get_attr("activation") == b"relu":
        dz, dbias = operations.overlap_tiled_conv2d_epilogue_grad(dy, op.outputs[0])
    else:
        dz, dbias = dy, bias_gradient(dy)
    window = _window(op) | {"algorithm": op.get_attr("algorithm").decode(), "share": op.get_attr("share")}
    dx = operations.overlap_tiled_conv2d_backprop_input(tf.shape(x), filters, dz, **window)
    dfilters = operations.overlap_tiled_conv2d_backprop_filter(x, tf.shape(filters), dz, **window)
    # Without a bias its input is empty, and so is its gradient.
    return dx, dfilters, tf.reshape(dbias[: tf.size(bias)], tf.shape(bias))


@tf.RegisterGradient("OverlapTiledConv2DBackpropInput")  # type: ignore[untyped-decorator]
def _input_gradient_gradient(op: Any, grad: tf.Tensor) -> tuple[None, tf.Tensor, tf.Tensor]:
    _, filters, dy = op.inputs
    window = _stock_window(op)
    by_filter = tf.raw_ops.Conv2DBackpropFilter(
        input=grad, filter_sizes=tf.shape(filters), out_backprop=dy, **window
    )
    return None, by_filter, tf.nn.conv2d(grad, filters, **window)


@tf.RegisterGradient("OverlapTiledConv2DBackpropFilter")  # type: ignore[untyped-decorator]
def _filter_gradient_gradient(op: Any, grad: tf.Tensor) -> tuple[tf.Tensor, None, tf.Tensor]:
    x, _, dy = op.inputs
    window = _stock_window(op)
    by_input = tf.raw_ops.Conv2DBackpropInput(input_sizes=tf.shape(x), filter=grad, out_backprop=dy, **window)
    return by_input, None, tf.nn.conv2d(x, grad, **window)


@tf.RegisterGradient("OverlapTiledConv2DEpilogueGrad")  # type: ignore[untyped-decorator]
def _epilogue_gradient_gradient(op: Any, by_sum: tf.Tensor, by_bias: tf.Tensor) -> tuple[tf.Tensor, None]:
    y = op.inputs[1]
    return tf.where(y > 0, by_sum + by_bias, tf.zeros_like(y)), None
