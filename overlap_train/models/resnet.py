"""A small residual network with batch normalisation, whose steps carry statistics across the batch."""

from __future__ import annotations

from collections.abc import Sequence

import keras


def resnet(
    *,
    input_shape: tuple[int, int, int] = (28, 28, 1),
    widths: Sequence[int] = (16, 32, 64),
    num_classes: int = 10,
) -> keras.Model:
    """Return the network, uncompiled: images in 0 to 1, float32 `[N, H, W, C]`, to logits.

    The moving averages have a momentum of 0.9, so that they are useful after a short epoch too. There is a
    residual block for each of `widths`, and each but the first halves the resolution: the form for small
    images of He et al., "Deep Residual Learning for Image Recognition", section 4.2.
    """
    inputs = keras.Input(input_shape)
    x = _normalised_convolution(inputs, widths[0], activation="relu")
    for index, width in enumerate(widths):
        x = _residual_block(x, width, stride=1 if index == 0 else 2)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x), name="resnet")


def _residual_block(x: keras.KerasTensor, width: int, *, stride: int) -> keras.KerasTensor:
    shortcut = x
    if stride != 1 or x.shape[-1] != width:
        shortcut = _normalised_convolution(x, width, kernel_size=1, stride=stride)
    x = _normalised_convolution(x, width, stride=stride, activation="relu")
    x = _normalised_convolution(x, width)
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))


def _normalised_convolution(
    x: keras.KerasTensor, width: int, *, kernel_size: int = 3, stride: int = 1, activation: str = "linear"
) -> keras.KerasTensor:
    x = keras.layers.Conv2D(width, kernel_size, strides=stride, padding="same", use_bias=False)(x)
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    return keras.layers.Activation(activation)(x)
