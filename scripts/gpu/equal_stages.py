"""Whether training gives Keras's numbers on a GPU, bit for bit, where TensorFlow's operations repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.gpu.overlap_stages import training_device
from scripts.gpu.stages import Context

__all__ = ["equal"]

_CLASSES, _WORDS, _LENGTH = 10, 500, 30
# Keras means losses in another function than a loop of many steps: the last place may differ.
_LAST_PLACES = 1e-6
_Network = tuple[Any, tuple[int, ...]]


def equal(context: Context) -> dict[str, Any]:
    """Train networks by Keras and by ours, twice two epochs each: a row for each network.

    Weights have to be the same; TensorFlow's deterministic operations are on.
    """
    training_device(context)
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    rows = (256, 128) if context.emulate else (4096, 2048)
    for name, make in context.todo(_networks(context).items(), lambda item: item[0]):
        theirs, ours = (_trained(make, rows, routed=routed) for routed in (False, True))
        weights = max(_largest(a, b) for a, b in zip(theirs[1], ours[1], strict=True))
        losses = max(_largest(theirs[0][key], ours[0][key]) for key in theirs[0])
        wrong = [f"weights differ by {weights:.1e}"] * (weights > 0)
        wrong += [f"the history differs by {losses:.1e}"] * (losses > _LAST_PLACES)
        row = {"network": name, "weights": weights, "history": losses, "messages": ours[2], "wrong": wrong}
        context.record.add(name, row)
    return {"networks": len(context.record.rows)}


def _networks(context: Context) -> dict[str, Callable[[], _Network]]:
    networks = {"cnn": _cnn, "lstm": _lstm, "transformer": _transformer}
    return networks if context.emulate else networks | {"mobilenetv3small": _mobile_net}


def _cnn() -> _Network:
    from keras import Input, Sequential, layers

    first = [layers.Conv2D(32, 3, use_bias=False), layers.BatchNormalization(), layers.ReLU()]
    then = [layers.Conv2D(64, 3, strides=2, activation="relu"), layers.Dropout(0.3)]
    last = [layers.GlobalAveragePooling2D(), layers.Dense(_CLASSES)]
    return Sequential([Input((32, 32, 3)), *first, *then, *last]), (32, 32, 3)


def _lstm() -> _Network:
    from keras import Input, Sequential, layers

    read = [layers.Embedding(_WORDS, 32), layers.LSTM(64), layers.Dense(_CLASSES)]
    return Sequential([Input((_LENGTH,), dtype="int32"), *read]), (_LENGTH,)


def _transformer() -> _Network:
    from keras import Input, Model, layers

    words = Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_WORDS, 128)(words)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32, dropout=0.1)(x, x))
        inner = layers.Dense(128)(layers.Dense(256, activation="gelu")(x))
        x = layers.LayerNormalization()(x + inner)
    return Model(words, layers.Dense(_CLASSES)(layers.GlobalAveragePooling1D()(x))), (_LENGTH,)


def _mobile_net() -> _Network:
    import keras

    shape = (96, 96, 3)
    options = {"weights": None, "classes": _CLASSES, "classifier_activation": None}
    return keras.applications.MobileNetV3Small(input_shape=shape, **options), shape


def _trained(
    make: Callable[[], _Network], rows: tuple[int, int], *, routed: bool
) -> tuple[dict[str, Any], list[Any], list[str]]:
    """Return the history of two fits, the weights, and what a trainer said."""
    import keras

    from overlap_train import Trainer

    keras.utils.set_random_seed(3)
    model, shape = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    trainer = Trainer(model) if routed else None
    (x, y), validation = (_data(count, shape, seed) for seed, count in enumerate(rows))
    history: dict[str, Any] = {}
    for fit in range(2):
        trained = (trainer or model).fit(
            x, y, batch_size=128, epochs=2, validation_data=validation, verbose=0
        )
        history |= {f"{key} {fit}": values for key, values in trained.history.items()}
    return history, model.get_weights(), list(trainer.messages) if trainer is not None else []


def _data(count: int, shape: tuple[int, ...], seed: int) -> tuple[Any, Any]:
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, _CLASSES, count)
    if len(shape) == 1:
        return chance.integers(0, _WORDS, (count, *shape), np.int32), labels
    return chance.standard_normal((count, *shape), np.float32), labels


def _largest(one: Any, other: Any) -> float:
    return float(np.max(np.abs(np.asarray(one) - np.asarray(other)), initial=0.0))
