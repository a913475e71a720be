"""Derivatives of the native operations, registered with TensorFlow when the library is loaded.

The first derivative uses our operations, the derivatives of those TensorFlow's: second derivatives of a
convolution are convolutions too, but seldom enough that their speed does not count.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import tensorflow as tf

__all__ = ["Differentiable", "bias_gradient", "record_gradient", "register_gradients"]


class Differentiable(Hashable, Protocol):
    """A computation that knows its derivatives; hashable, and equal to every other that has the same ones."""

    def gradients(self, dy: tf.Tensor, y: tf.Tensor, *inputs: tf.Tensor) -> Sequence[tf.Tensor]:
        """Returns the gradients to all inputs, given the output's."""


def record_gradient(computation: Differentiable, inputs: tuple[tf.Tensor, ...], y: tf.Tensor) -> None:
    """Gives `y` the computation's derivatives in place of those of the operations that it was made by.

    In a graph, tf.custom_gradient would register a function for each call, for ever, that keeps the graph
    alive.
    """
    with _registering:
        name = _registered(computation)
    tf.__internal__.record_gradient(name, inputs, (), (y,))


_registering = threading.Lock()


@functools.cache
def _registered(computation: Differentiable) -> str:
    """Returns the name under which TensorFlow knows the gradients."""
    name = f"OverlapTrain{computation}"

    def gradient(op: Any, dy: tf.Tensor) -> Sequence[tf.Tensor]:
        return computation.gradients(dy, op.outputs[0], *op.inputs)

    tf.RegisterGradient(name)(gradient)
    return name


def bias_gradient(dz: tf.Tensor) -> tf.Tensor:
    """Sums [batch, height, width, channels] over the pixels, row by row: one long sum would lose digits."""
    return tf.reduce_sum(tf.reduce_sum(dz, 2), [0, 1])


@functools.cache  # TensorFlow takes one gradient for each operation and process
def register_gradients(operations: Any) -> None:
    """Tells TensorFlow the derivatives of the native operations; under the lock of `library`."""

    def forward_gradient(op: Any, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
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

    tf.RegisterGradient("OverlapTiledConv2D")(forward_gradient)
    tf.RegisterGradient("OverlapTiledConv2DBackpropInput")(_input_gradient_gradient)
    tf.RegisterGradient("OverlapTiledConv2DBackpropFilter")(_filter_gradient_gradient)
    tf.RegisterGradient("OverlapTiledConv2DEpilogueGrad")(_epilogue_gradient_gradient)
    tf.RegisterGradient("OverlapDepthwiseConv2DBackpropFilter")(_depthwise_gradient_gradient)


def _window(op: Any) -> dict[str, Any]:
    return {"strides": list(op.get_attr("strides")), "padding": op.get_attr("padding").decode()}


def _stock_window(op: Any) -> dict[str, Any]:
    height, width = op.get_attr("strides")
    return {"strides": [1, height, width, 1], "padding": op.get_attr("padding").decode()}


def _input_gradient_gradient(op: Any, grad: tf.Tensor) -> tuple[None, tf.Tensor, tf.Tensor]:
    _, filters, dy = op.inputs
    window = _stock_window(op)
    by_filter = tf.raw_ops.Conv2DBackpropFilter(
        input=grad, filter_sizes=tf.shape(filters), out_backprop=dy, **window
    )
    return None, by_filter, tf.nn.conv2d(grad, filters, **window)


def _filter_gradient_gradient(op: Any, grad: tf.Tensor) -> tuple[tf.Tensor, None, tf.Tensor]:
    x, _, dy = op.inputs
    window = _stock_window(op)
    by_input = tf.raw_ops.Conv2DBackpropInput(input_sizes=tf.shape(x), filter=grad, out_backprop=dy, **window)
    return by_input, None, tf.nn.conv2d(x, grad, **window)


def _epilogue_gradient_gradient(op: Any, by_sum: tf.Tensor, by_bias: tf.Tensor) -> tuple[tf.Tensor, None]:
    y = op.inputs[1]
    return tf.where(y > 0, by_sum + by_bias, tf.zeros_like(y)), None


def _depthwise_gradient_gradient(op: Any, grad: tf.Tensor) -> tuple[tf.Tensor, None, tf.Tensor]:
    x, _, dy = op.inputs
    window = _stock_window(op)
    by_input = tf.nn.depthwise_conv2d_backprop_input(tf.shape(x), grad, dy, **window)
    return by_input, None, tf.nn.depthwise_conv2d(x, grad, **window)
