"""The networks that are trained on a card, for Keras on any backend, and made-up data to learn from.

Each in three sizes: "full" for a card; "tiny", the same layers on small inputs; "least", few layers of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["NETWORKS", "Network", "Rows"]

Rows = tuple[Any, Any]
_CLASSES = 10
_DISTINCT = 256  # rows of made-up images, which are repeated: random numbers take longer than an epoch


@dataclass(frozen=True)
class Network:
    """What is trained: images of uint8, or tokens where there are `words`."""

    shape: tuple[int, ...]  # of a row
    tiny: tuple[int, ...]
    batch: int
    rows: tuple[int, int]  # of the training and of the validation
    outputs: Callable[[Any, Any, bool], Any]  # of keras, the inputs, and whether the least will do
    start_s: float  # on an H100, estimated: a process, tracing and the choice of cuDNN's algorithms
    epoch_s: float  # the same: an epoch in float32, with its validation
    words: int = 0
    is_mask: bool = False  # whether a class belongs to each pixel

    def batch_size(self, size: str) -> int:
        return self.batch if size == "full" else 4

    def model(self, keras: Any, size: str, *, scales: bool) -> Any:
        """Return the network, uncompiled; with `scales` it takes pixels of 0 to 255."""
        shape = self.shape if size == "full" else self.tiny
        inputs = keras.Input(shape, dtype="int32" if self.words else "uint8" if scales else "float32")
        x = keras.layers.Rescaling(1 / 255)(inputs) if scales and not self.words else inputs
        logits = self.outputs(keras, x, size == "least")
        # Losses are computed in float32 under mixed_float16, too.
        return keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(logits))

    def data(self, size: str) -> tuple[Rows, Rows]:
        """Return the rows of the training and of the validation, which begin alike."""
        shape = self.shape if size == "full" else self.tiny
        chance = np.random.default_rng(0)
        y = chance.integers(0, _CLASSES, _DISTINCT, np.int32)
        of_row = y.reshape(-1, *[1] * len(shape))
        if self.words:  # the tokens of a class are those with its last digit
            x = chance.integers(0, self.words // 10, (_DISTINCT, *shape), np.int32) * 10 + of_row
        else:
            x = chance.integers(0, 128, (_DISTINCT, *shape), np.uint8) + (12 * of_row).astype(np.uint8)
        y = (x[..., :1] > 120).astype(np.int32) if self.is_mask else y
        counts = self.rows if size == "full" else (10, 6)
        first, second = ((np.resize(x, (n, *shape)), np.resize(y, (n, *y.shape[1:]))) for n in counts)
        return first, second


def _application(kind: str) -> Callable[[Any, Any, bool], Any]:
    def outputs(keras: Any, x: Any, least: bool) -> Any:
        if least:
            x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, activation="relu")(x))
            return keras.layers.Dense(_CLASSES)(keras.layers.GlobalAveragePooling2D()(x))
        options = {"weights": None, "classes": _CLASSES, "classifier_activation": None}
        return getattr(keras.applications, kind)(input_shape=x.shape[1:], **options)(x)

    return outputs


def _unet(keras: Any, x: Any, least: bool) -> Any:
    from overlap_train.models.unet import unet

    widths = (2, 4) if least else (64, 128, 256, 512, 1024)
    return unet(x.shape[1:], classes=2, widths=widths)(x)


def _transformer(keras: Any, tokens: Any, least: bool) -> Any:
    """Twelve layers as BERT's, 512 wide."""
    layers, heads, size = (1, 1, 8) if least else (12, 8, 64)
    width = heads * size
    x = keras.layers.Embedding(5000, width)(tokens)
    for _ in range(layers):
        attended = keras.layers.MultiHeadAttention(heads, size, dropout=0.1)(x, x)
        x = keras.layers.LayerNormalization()(x + attended)
        hidden = keras.layers.Dense(width)(keras.layers.Dense(4 * width, "gelu")(x))
        x = keras.layers.LayerNormalization()(x + keras.layers.Dropout(0.1)(hidden))
    return keras.layers.Dense(_CLASSES)(keras.layers.GlobalAveragePooling1D()(x))


def _mnist(keras: Any, x: Any, least: bool) -> Any:
    from overlap_train.models.mnist_cnn import mnist_cnn

    return mnist_cnn()(x)


_SMALL = (32, 32, 3)
NETWORKS = {
    "mnist": Network((28, 28, 1), (28, 28, 1), 128, (60_000, 10_000), _mnist, 12, 0.6),
    "resnet50": Network((224, 224, 3), _SMALL, 64, (3072, 1024), _application("ResNet50"), 24, 4),
    "efficientnetb0": Network(
        (224, 224, 3), _SMALL, 64, (3072, 1024), _application("EfficientNetB0"), 33, 2.5
    ),
    "unet": Network((128, 192, 3), (32, 48, 3), 32, (1024, 320), _unet, 14, 1.5, is_mask=True),
    "transformer": Network((128,), (16,), 64, (4096, 1024), _transformer, 20, 2.5, words=5000),
}
