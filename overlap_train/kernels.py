"""Stock layers on faster operations than Keras's, while a training step is traced.

Conv2D runs on `overlap_train.conv`, whose kernels are timed beside TensorFlow's shape by shape, and
BatchNormalization on TensorFlow's fused operation, where Keras composes it of some twenty that each go
through the whole batch. Both compute the same in another order, so results differ by rounding. The layers are
the same before and after, and for other threads all the time.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from overlap_train import _keras
from overlap_train.conv import layers, library
from overlap_train.conv.acceleration import stock_convolutions

__all__ = ["fast_kernels", "fused_batch_normalization"]

_Call = Callable[..., tf.Tensor]


def fast_kernels(model: keras.Model, *, build: bool) -> Callable[[_Call, int | None], _Call] | None:
    """Returns what runs a function of a model on the faster operations, or None if it would change nothing.

    What is returned takes the function and the rows with which it calls the model, or None if they are not
    known, and returns a function to be traced. It belongs to the thread that traces it.

    Args:
        model: built or not.
        build: whether the convolution may be compiled if it is not yet.
    """
    calls: dict[keras.Layer, Callable[[int | None], _Call]] = {}
    for layer in _keras.flat_layers(model):
        if _is_stock_normalization(layer):
            calls[layer] = functools.partial(_normalization, layer)
    convolutions = stock_convolutions(model)
    if convolutions and (build or library.is_built()):
        for layer in convolutions:
            calls[layer] = functools.partial(_convolution, layer)
    if not calls:
        return None

    def around(function: _Call, rows: int | None) -> _Call:
        def run(*arguments: Any) -> Any:
            with _swapped({layer: make(rows) for layer, make in calls.items()}):
                return function(*arguments)

        return run

    return around


@contextlib.contextmanager
def _swapped(calls: Mapping[keras.Layer, _Call]) -> Iterator[None]:
    """Gives layers another `call`, for this thread only."""
    owner = threading.get_ident()
    for layer, fast in calls.items():
        stock = layer.call

        @functools.wraps(stock)
        def call(*arguments: Any, stock: _Call = stock, fast: _Call = fast, **options: Any) -> tf.Tensor:
            chosen = fast if threading.get_ident() == owner else stock
            return chosen(*arguments, **options)

        # Past Keras's attribute tracking, which has nothing to track here.
        object.__setattr__(layer, "call", call)
    try:
        yield
    finally:
        for layer in calls:
            del layer.__dict__["call"]


def _convolution(layer: keras.layers.Conv2D, rows: int | None) -> _Call:
    return functools.partial(layers.convolve, layer, batch_hint=rows)


def _is_stock_normalization(layer: keras.Layer) -> bool:
    base = keras.layers.BatchNormalization
    return (
        isinstance(layer, base)
        and type(layer).call is base.call
        and "call" not in vars(layer)
        and layer.compute_dtype == "float32"
        and not layer.synchronized
        and not getattr(layer, "renorm", False)
    )


def _normalization(layer: keras.layers.BatchNormalization, _: int | None) -> _Call:
    stock = layer.call

    def call(inputs: tf.Tensor, training: Any = None, mask: Any = None) -> tf.Tensor:
        last = inputs.shape.rank is not None and layer.axis in (-1, inputs.shape.rank - 1)
        fits = last and inputs.shape[-1] is not None and inputs.dtype == tf.float32
        if training is not True or not layer.trainable or mask is not None or not fits:
            output: tf.Tensor = stock(inputs, training=training, mask=mask)
            return output
        return fused_batch_normalization(layer, inputs)

    return call


def fused_batch_normalization(layer: keras.layers.BatchNormalization, inputs: tf.Tensor) -> tf.Tensor:
    """Normalises a batch in training, and updates the layer's moving averages, as the layer does.

    Args:
        layer: built; float32, with the channels last.
        inputs: float32[..., channels].
    """
    channels = inputs.shape[-1]
    image = inputs if inputs.shape.rank == 4 else tf.reshape(inputs, [-1, 1, 1, channels])
    gamma = tf.convert_to_tensor(layer.gamma) if layer.scale else tf.ones([channels])
    beta = tf.convert_to_tensor(layer.beta) if layer.center else tf.zeros([channels])
    nothing = tf.zeros([0])
    output, mean, sample_variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=image,
        scale=gamma,
        offset=beta,
        mean=nothing,
        variance=nothing,
        epsilon=layer.epsilon,
        is_training=True,
    )
    # The operation divides by n - 1, Keras by n.
    n = tf.cast(tf.size(image) // channels, tf.float32)
    averages = ((layer.moving_mean, mean), (layer.moving_variance, sample_variance * ((n - 1.0) / n)))
    for average, value in averages:
        average.assign(average * layer.momentum + value * (1.0 - layer.momentum))
    return output if inputs.shape.rank == 4 else tf.reshape(output, tf.shape(inputs))
