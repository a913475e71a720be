"""A tiny perceptron: so little arithmetic in a step that a training loop's own cost is what one sees."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import keras

from overlap_train._support.arguments import require_count, require_each

__all__ = ["mlp"]


def mlp(*, features: int = 32, hidden: Sequence[int] = (64, 64), num_classes: int = 10) -> keras.Sequential:
    """Return the network, uncompiled: float32 `[N, features]` to logits `[N, num_classes]`."""
    features = require_count("features", features, minimum=1)
    num_classes = require_count("num_classes", num_classes, minimum=1)
    expected = "a sequence of widths"
    hidden = require_each("hidden", hidden, functools.partial(require_count, minimum=1), expected=expected)
    return keras.Sequential(
        [
            keras.Input((features,)),
            *(keras.layers.Dense(units, activation="relu") for units in hidden),
            keras.layers.Dense(num_classes),
        ],
        name="mlp",
    )
