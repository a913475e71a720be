"""What the scripts of the clients share: a small model, its data, and what comes of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from overlap_train import Trainer

_IN_STEP = "validating in step with the training: "


def _arrays(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8)).astype("float32")
    return x, (x[:, 0] + 0.3 * rng.normal(size=rows) > 0).astype("int32")


X, Y = _arrays(256, 0)
VALIDATION = _arrays(96, 1)
ARGUMENTS: dict[str, Any] = {
    "epochs": 4,
    "batch_size": 32,
    "verbose": 0,
    "validation_data": VALIDATION,
}


@dataclass
class Run:
    """What came of a training: numbers that are compared, and the trainer; None under Keras."""

    values: Mapping[str, Any]
    trainer: Trainer | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, model: keras.Model, trainer: Trainer | None = None, more: Mapping[str, Any] | None = None
    ) -> Run:
        """Returns the weights and the history of a model that has been trained, and `more` values."""
        weights = {f"weight {n}": np.asarray(w) for n, w in enumerate(model.variables)}
        return cls({**model.history.history, **weights, **(more or {})}, trainer)


def build() -> keras.Model:
    """Returns a small classifier, compiled, always with the same weights."""
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(2),
        ],
        name="classifier",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def plateau() -> keras.callbacks.Callback:
    """Returns a callback that changes the training at its second epoch, so that one is trained again."""
    return keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0)


def both_ways(
    train: Callable[[Any], Mapping[str, Any] | None], make: Callable[[], keras.Model] = build
) -> tuple[Callable[[], Run], Callable[[], Run]]:
    """Returns the `stock` and `ours` of a client that trains by one call of `fit`."""

    def stock() -> Run:
        model = make()
        return Run.of(model, more=train(model))

    def ours() -> Run:
        model = make()
        trainer = Trainer(model)
        return Run.of(model, trainer, train(trainer))

    return stock, ours


def in_step(trainer: Trainer) -> str | None:
    """Returns why a training could not run ahead of its validation, or None."""
    for message in trainer.messages:
        if message.startswith(_IN_STEP):
            return message.removeprefix(_IN_STEP)
    return None
