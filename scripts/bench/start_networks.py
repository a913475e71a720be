"""The networks whose starts are compared, with small data that has something to learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_CLASSES = 10


def make(name: str, steps: int, batch_size: int) -> tuple[Any, tuple[Any, Any], tuple[Any, Any]]:
    """Returns a compiled model, `steps` batches of training data, and half as many for validation."""
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


def given_as(source: str, train: tuple[Any, Any], validation: tuple[Any, Any], batch_size: int) -> Any:
    """Returns training and validation data as `fit` takes them, and the arguments that say the batches."""
    if source == "arrays":
        return train, validation, {"batch_size": batch_size}
    make = _dataset if source == "tfdata" else _py_dataset
    return (make(train, batch_size, True),), make(validation, batch_size, False), {}


def _dataset(arrays: tuple[Any, Any], batch_size: int, shuffle: bool) -> Any:
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices(arrays)
    return (rows.shuffle(len(arrays[0])) if shuffle else rows).batch(batch_size)


def _py_dataset(arrays: tuple[Any, Any], batch_size: int, shuffle: bool) -> Any:
    import keras

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(arrays[0]) // batch_size

        def __getitem__(self, index: int) -> tuple[Any, ...]:
            rows = slice(index * batch_size, (index + 1) * batch_size)
            return tuple(array[rows] for array in arrays)

    return Batches()


def _mlp(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(_CLASSES)]
    return keras.Sequential([keras.Input((32,)), *layers]), (32,), 0


def _cnn(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    layers = [*(keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.MaxPooling2D())]
    layers += [*(keras.layers.Conv2D(64, 3, activation="relu"), keras.layers.MaxPooling2D())]
    layers += [keras.layers.Flatten(), keras.layers.Dropout(0.5), keras.layers.Dense(_CLASSES)]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers]), (28, 28, 1), 0


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


SOURCES = ("arrays", "tfdata", "pydataset")
NETWORKS: dict[str, Callable[[Any], tuple[Any, tuple[int, ...], int]]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "transformer": _transformer,
    "mobilenetv3small": _application("MobileNetV3Small"),
    "mobilenetv2": _application("MobileNetV2"),
    "efficientnetb0": _application("EfficientNetB0"),
    "resnet50": _application("ResNet50"),
    "densenet121": _application("DenseNet121"),
}
