"""AlexNet (Krizhevsky, Sutskever and Hinton 2012), in the single-tower form."""

from __future__ import annotations

import keras


def alexnet(input_shape: tuple[int, int, int] = (227, 227, 3), classes: int = 1000) -> keras.Model:
    """Build AlexNet with random weights.

    Local response normalisation is left out and the two towers are one, as in the author's later
    "One weird trick" paper (2014), whose channel counts these are.

    Args:
        input_shape: height, width and channels; at least 63 by 63.
        classes: size of the softmax.

    Returns:
        A model from float32 `[N, H, W, C]` to float32 `[N, classes]`.
    """
    layers = keras.layers
    x = inputs = keras.Input(input_shape)
    x = layers.Conv2D(64, 11, strides=4, padding="same", activation="relu", name="conv1")(x)
    x = layers.MaxPooling2D(3, 2, name="pool1")(x)
    x = layers.Conv2D(192, 5, padding="same", activation="relu", name="conv2")(x)
    x = layers.MaxPooling2D(3, 2, name="pool2")(x)
    x = layers.Conv2D(384, 3, padding="same", activation="relu", name="conv3")(x)
    x = layers.Conv2D(256, 3, padding="same", activation="relu", name="conv4")(x)
    x = layers.Conv2D(256, 3, padding="same", activation="relu", name="conv5")(x)
    x = layers.MaxPooling2D(3, 2, name="pool5")(x)
    x = layers.Flatten(name="flatten")(x)
    for number in (6, 7):
        x = layers.Dense(4096, activation="relu", name=f"dense{number}")(x)
        x = layers.Dropout(0.5, name=f"dropout{number}")(x)
    x = layers.Dense(classes, activation="softmax", name="predictions")(x)
    return keras.Model(inputs, x, name="alexnet")
