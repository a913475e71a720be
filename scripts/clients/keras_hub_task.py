"""KerasHub: a task, whose own `fit` prepares the data."""

from __future__ import annotations

import keras
import keras_hub
import numpy as np

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run


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


def stock() -> Run:
    task = _task()
    task.fit(X, Y, **DATA)
    return Run.of(task)


def ours() -> Run:
    task = _task()
    trainer = Trainer(task)
    trainer.fit(X, Y, **DATA)
    return Run.of(task, trainer)
