"""KerasHub: a task, whose own `fit` prepares the data."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np

from scripts.clients.case import ARGUMENTS, both_ways


def _task() -> keras_hub.models.BertTextClassifier:
    keras.utils.set_random_seed(5)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=40,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=12,
    )
    task = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None, dropout=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return task


def _data(rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    tokens = np.random.default_rng(seed).integers(1, 40, size=(rows, 12)).astype("int32")
    features = {
        "token_ids": tokens,
        "segment_ids": np.zeros_like(tokens),
        "padding_mask": np.ones_like(tokens),
    }
    return features, (tokens[:, 0] > 20).astype("int32")


# A task prepares the validation data in an `evaluate` of its own, which is called as Keras calls it.
IN_STEP = "evaluate of its own"
X, Y = _data(128, 0)
DATA = {**ARGUMENTS, "validation_data": _data(64, 1)}


def train(trainer: Any) -> None:
    trainer.fit(X, Y, **DATA)


stock, ours = both_ways(train, _task)
