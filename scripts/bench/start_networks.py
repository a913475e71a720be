"""The networks whose starts are compared, with small data that has something to learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["NETWORKS", "make"]

_CLASSES = 10


def make(name: str, steps: int, batch_size: int) -> tuple[Any, tuple[Any, Any], tuple[Any, Any]]:
    """Returns a compiled model, training and validation data of a network.

    Args:
        name: one of `NETWORKS`.
        steps: batches of training data; the validation data has half as many.
        batch_size: rows of a batch.
    """
    import keras

    keras.utils.set_random_seed(1)
    network, shape, words = NETWORKS[name](keras)
    rng = np.random.default_rng(0)

    def data(rows: int) -> tuple[Any, Any]:
        x = rng.integers(0, words, (rows, *shape)) if words else rng.random((rows, *shape), np.float32)
        return x, rng.integers(0, _CLASSES, rows)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile("adam", loss, metrics=["accuracy"])
    return network, data(steps * batch_size), data(max(1, steps // 2) * batch_size)


def _mlp(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(_CLASSES)]
    return keras.Sequential([keras.Input((32,)), *layers]), (32,), 0


def _recurrent(kind: str) -> Callable[[Any], tuple[Any, tuple[int, ...], int]]:
    def build(keras: Any) -> tuple[Any, tuple[int, ...], int]:
        layer = keras.layers.Bidirectional(getattr(keras.layers, kind)(64))
        layers = [keras.layers.Embedding(2000, 64), layer, keras.layers.Dense(_CLASSES)]
        return keras.Sequential([keras.Input((80,), dtype="int64"), *layers]), (80,), 2000

    return build


def _transformer(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    """Four layers, 128 wide, over 64 tokens."""
    tokens = keras.Input((64,), dtype="int64")
    x = keras.layers.Embedding(2000, 128)(tokens)
    for _ in range(4):
        attended = keras.layers.MultiHeadAttention(4, 32, dropout=0.1)(x, x)
        x = keras.layers.LayerNormalization()(x + attended)
        hidden = keras.layers.Dense(128)(keras.layers.Dense(512, "gelu")(x))
        x = keras.layers.LayerNormalization()(x + keras.layers.Dropout(0.1)(hidden))
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, keras.layers.Dense(_CLASSES)(x)), (64,), 2000


def _application(kind: str) -> Callable[[Any], tuple[Any, tuple[int, ...], int]]:
    def build(keras: Any) -> tuple[Any, tuple[int, ...], int]:
        network = getattr(keras.applications, kind)(
            weights=None, classes=_CLASSES, input_shape=(64, 64, 3), classifier_activation=None
        )
        return network, (64, 64, 3), 0

    return build


NETWORKS: dict[str, Callable[[Any], tuple[Any, tuple[int, ...], int]]] = {
    "mlp": _mlp,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "transformer": _transformer,
    "mobilenetv3small": _application("MobileNetV3Small"),
    "mobilenetv2": _application("MobileNetV2"),
    "efficientnetb0": _application("EfficientNetB0"),
    "resnet50": _application("ResNet50"),
    "densenet121": _application("DenseNet121"),
}
