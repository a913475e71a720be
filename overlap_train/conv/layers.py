"""`TiledConv2D`: Keras's Conv2D on our operation."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from overlap_train._support.arguments import require_choice
from overlap_train.conv import operation

__all__ = ["TiledConv2D", "convolve", "unsupported"]


def unsupported(layer: keras.layers.Conv2D) -> str | None:
    """Why our operation cannot compute a Conv2D layer, or None if it can."""
    if layer.data_format != "channels_last":
        return f"data_format={layer.data_format!r}: only channels_last"
    if layer.groups != 1:
        return f"groups={layer.groups}: no grouped convolution"
    if tuple(layer.dilation_rate) != (1, 1):
        return f"dilation_rate={tuple(layer.dilation_rate)}: no dilated convolution"
    if layer.padding not in ("same", "valid"):
        return f"padding={layer.padding!r}: only same and valid"
    return None


def convolve(
    layer: keras.layers.Conv2D, inputs: tf.Tensor, *, algorithm: str = "auto", batch_hint: int | None = None
) -> tf.Tensor:
    """Computes a Conv2D layer by our operation, its ReLU included where it has one."""
    relu = layer.activation is keras.activations.relu
    y = operation.tiled_conv2d(
        inputs,
        layer.kernel,
        layer.bias if layer.use_bias else None,
        strides=layer.strides,
        padding=layer.padding,
        activation="relu" if relu else None,
        algorithm=algorithm,
        batch_hint=batch_hint,
        name=layer.name,
    )
    return y if relu or layer.activation is None else layer.activation(y)


@keras.saving.register_keras_serializable(package="overlap_train")
class TiledConv2D(keras.layers.Conv2D):  # type: ignore[misc]
    """Convolve like keras.layers.Conv2D, with the same arguments, weights and results, on `tiled_conv2d`.

    A saved model with this layer needs this package to load; `accelerate` avoids that.

    Args:
        *args: the positional arguments of keras.layers.Conv2D.
        algorithm: the algorithm of `tiled_conv2d`: "auto", "direct" or "winograd".
        **kwargs: the keyword arguments of keras.layers.Conv2D; channels_last, without groups and dilation.

    Raises:
        ValueError: an argument asks for something that only keras.layers.Conv2D can do.
    """

    def __init__(self, *args: Any, algorithm: str = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        algorithm = require_choice("algorithm", algorithm, operation.ALGORITHMS)
        reason = unsupported(self)
        if reason is not None:
            raise ValueError(f"TiledConv2D cannot do {reason}; use keras.layers.Conv2D")
        self.algorithm = algorithm

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the layer's output, [batch, height, width, filters]."""
        return convolve(self, inputs, algorithm=self.algorithm)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "algorithm": self.algorithm}
