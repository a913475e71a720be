"""A tiny perceptron: so little arithmetic in a step that a training loop's own cost is what one sees."""

from __future__ import annotations

from collections.abc import Sequence

import keras


def mlp(*, features: int = 32, hidden: Sequence[int] = (64, 64), num_classes: int = 10) -> keras.Sequential:
    """Return the network, uncompiled: float32 `[N, features]` to logits `[N, num_classes]`."""
    return keras.Sequential(
        [
            keras.Input((features,)),
            *(keras.layers.Dense(units, activation="relu") for units in hidden),
            keras.layers.Dense(num_classes),
        ],
        name="mlp",
    )
