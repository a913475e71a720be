"""Which DepthwiseConv2D layers gain from our gradient of the filters, and what replaces their `call`."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from overlap_train.conv.convolution import DepthwiseConvolution, may_run_natively

__all__ = ["convolve_depthwise", "has_slow_gradient"]

# Fewer channels do not fill a vector; TensorFlow has a kernel of its own for 3x3 filters, which keeps up with
# ours as long as they are few.
_FEWEST, _FEWEST_3X3 = 16, 64


def has_slow_gradient(layer: keras.Layer) -> bool:
    """Return whether a layer is a stock DepthwiseConv2D whose filters have a faster gradient here."""
    if type(layer) is not keras.layers.DepthwiseConv2D or "call" in vars(layer) or not layer.built:
        return False
    channels = layer.kernel.shape[2]
    return (
        layer.compute_dtype == layer.variable_dtype == "float32"
        and layer.data_format == "channels_last"
        and layer.depth_multiplier == 1
        and tuple(layer.dilation_rate) == (1, 1)
        and layer.strides[0] == layer.strides[1]
        and channels >= (_FEWEST_3X3 if tuple(layer.kernel_size) == (3, 3) else _FEWEST)
        and not tf.config.list_physical_devices("GPU")  # our kernel would pull the tensors off it
    )


def convolve_depthwise(layer: keras.layers.DepthwiseConv2D) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function to be called in place of `layer.call`.

    Args:
        layer: one for which `has_slow_gradient` holds.
    """
    stock = layer.call
    convolution = DepthwiseConvolution(layer.strides[0], layer.padding.upper())

    def call(inputs: tf.Tensor) -> tf.Tensor:
        fits = inputs.dtype == tf.float32 and inputs.shape.rank == 4
        if not fits or not layer.trainable or not may_run_natively(inputs.dtype):
            return stock(inputs)
        y = convolution(inputs, tf.convert_to_tensor(layer.kernel))
        if layer.use_bias:
            y = tf.nn.bias_add(y, tf.convert_to_tensor(layer.bias))
        return y if layer.activation is None else layer.activation(y)

    return call
