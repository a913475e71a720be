"""Convolutions and dense layers for inference, with constant weights and what follows them folded in.

A BatchNormalization behind a convolution is a factor and an offset for each channel, so it goes into the
kernel and the bias. The layers themselves stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train.conv import tiled_conv2d

__all__ = ["Product"]

_LINEAR = (None, keras.activations.linear)
_ELEMENTWISE = frozenset(
    getattr(keras.activations, name)
    for name in ("relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "sigmoid", "tanh")
).union(_LINEAR)
_KINDS = (keras.layers.Conv2D, keras.layers.DepthwiseConv2D, keras.layers.Dense)


@dataclass(frozen=True, eq=False)
class Product:
    """`activation(layer's product · scale + offset + residual)`, of a layer and what was folded into it."""

    layer: Any
    norm: Any = None  # a BatchNormalization
    activation: Callable[[Any], Any] | None = None
    adds: bool = False  # a residual, its second input

    @classmethod
    def of(cls, layer: Any) -> Product | None:
        """Return the product of a layer, or None if a custom call or other weights might compute it."""
        if not _is_stock(layer, *_KINDS) or getattr(layer, "quantization_mode", None):
            return None
        if getattr(layer, "lora_enabled", False) or "convolution_op" in vars(layer):
            return None
        if getattr(layer, "data_format", "channels_last") != "channels_last":
            return None
        if type(layer) is keras.layers.Conv2D and (layer.groups != 1 or layer.dilation_rate != (1, 1)):
            return None
        return cls(layer, activation=layer.activation)

    @property
    def is_convolution(self) -> bool:
        """Whether the layer is a `Conv2D`."""
        return type(self.layer) is keras.layers.Conv2D

    @property
    def is_elementwise(self) -> bool:
        """Whether the activation computes each number by itself, so that it can be applied to a part."""
        return self.activation in _ELEMENTWISE

    def followed_by(self, layer: Any, *, like: Any, other: Any) -> Product | None:
        """Return this product with the layer behind it folded in, or None if that cannot be.

        The layer reads `like`, the symbolic output of this product, and perhaps a second tensor, `other`.
        """
        if self.activation not in _LINEAR:
            return None
        if other is not None:
            fits = _is_stock(layer, keras.layers.Add) and other.shape == like.shape and not self.adds
            return replace(self, adds=True) if fits and other.dtype == like.dtype else None
        if _is_stock(layer, keras.layers.BatchNormalization):
            fits = self.norm is None and not self.adds and layer.axis in (-1, len(like.shape) - 1)
            return replace(self, norm=layer) if fits else None
        if _is_stock(layer, keras.layers.Activation):
            return replace(self, activation=layer.activation)
        if _is_stock(layer, keras.layers.ReLU):
            is_plain = layer.max_value is None and not layer.negative_slope and not layer.threshold
            return replace(self, activation=keras.activations.relu if is_plain else layer)
        return None

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernel and the bias at this moment, with what was folded into them."""
        layer, norm = self.layer, self.norm
        with tf.init_scope():  # out of the function that is being traced
            kernel = np.asarray(layer.kernel)
            channels = kernel.shape[-2:] if type(layer) is keras.layers.DepthwiseConv2D else kernel.shape[-1:]
            bias = np.asarray(layer.bias) if layer.use_bias else np.zeros(np.prod(channels), kernel.dtype)
            if norm is not None:
                # In double precision, as folding is to add no error of its own.
                scale = 1 / np.sqrt(np.asarray(norm.moving_variance, np.float64) + norm.epsilon)
                scale = scale * np.asarray(norm.gamma) if norm.scale else scale
                bias = (bias - np.asarray(norm.moving_mean)) * scale
                bias = bias + np.asarray(norm.beta) if norm.center else bias
                kernel = kernel * scale.reshape(channels)
        return kernel.astype(layer.compute_dtype), bias.astype(layer.compute_dtype)

    def __call__(self, x: tf.Tensor, residual: tf.Tensor | None = None) -> tf.Tensor:
        """Trace the product of a tensor `[N, ...]`, and the residual that is added to it."""
        kernel, bias = self.weights()
        x = tf.cast(x, self.layer.compute_dtype)
        if residual is None:
            return self.multiply(x, kernel, bias)
        y = replace(self, activation=None).multiply(x, kernel, bias) + tf.cast(residual, x.dtype)
        return self.activate(y)

    def multiply(self, x: tf.Tensor, kernel: np.ndarray, bias: np.ndarray, **changed: Any) -> tf.Tensor:
        """Trace the product with these weights or a part of them, and changed options of a convolution."""
        layer = self.layer
        with tf.init_scope():  # captured: constants of a graph are copied many times
            kernel, bias = tf.constant(kernel), tf.constant(bias)
        if self.is_convolution:
            relu = self.activation is keras.activations.relu
            options = {"strides": layer.strides, "padding": layer.padding} | changed
            y = tiled_conv2d(x, kernel, bias, activation="relu" if relu else None, **options)
            return y if relu else self.activate(y)
        if type(layer) is keras.layers.Dense:
            return self.activate(keras.ops.matmul(x, kernel) + bias)
        y = tf.nn.depthwise_conv2d(
            x, kernel, [1, *layer.strides, 1], layer.padding.upper(), dilations=layer.dilation_rate
        )
        return self.activate(tf.nn.bias_add(y, bias))

    def activate(self, y: tf.Tensor) -> tf.Tensor:
        """Trace the activation."""
        return y if self.activation is None else self.activation(y)


def _is_stock(layer: Any, *kinds: type) -> bool:
    """Whether a layer is of one of these classes itself and computes in single or double precision."""
    return (
        type(layer) in kinds
        and "call" not in vars(layer)
        and layer.compute_dtype in ("float32", "float64")
        and layer.compute_dtype == layer.variable_dtype
    )
