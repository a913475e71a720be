"""The convolutional network for MNIST that paper P1 measures: two convolutions, each with pooling."""

from __future__ import annotations

import keras


def mnist_cnn(*, num_classes: int = 10, dropout: float = 0.5, from_uint8: bool = False) -> keras.Sequential:
    """Return the network, uncompiled; its outputs are logits, float32 `[N, num_classes]`.

    Args:
        num_classes: number of classes.
        dropout: the share of features dropped before the last layer.
        from_uint8: whether the inputs are pixels of 0 to 255, divided by 255 inside the model, or
            already floats of 0 to 1. In both cases images `[N, 28, 28, 1]`.
    """
    layers = keras.layers
    scaling = [layers.Rescaling(1 / 255)] if from_uint8 else []
    return keras.Sequential(
        [
            keras.Input((28, 28, 1), dtype="uint8" if from_uint8 else "float32"),
            *scaling,
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(dropout),
            layers.Dense(num_classes),
        ],
        name="mnist_cnn",
    )
