"""Hugging Face datasets: its tables as training and validation data, with a rollback and a resumed fit."""

from __future__ import annotations

import datasets
import keras

from overlap_train import Trainer
from scripts.clients.case import VALIDATION, Run, X, Y, build, plateau

ARGUMENTS = {"epochs": 4, "verbose": 0}


def _batches(x, y, shuffle: bool = False):
    keras.utils.set_random_seed(3)
    table = datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()})
    return table.to_tf_dataset(columns="x", label_cols="y", batch_size=32, shuffle=shuffle)


def stock() -> Run:
    model, data, validation = build(), _batches(X, Y, shuffle=True), _batches(*VALIDATION)
    model.fit(data, validation_data=validation, callbacks=[plateau()], **ARGUMENTS)
    return Run.of(model)


def ours() -> Run:
    # Half of it first; the second call goes on from there.
    for epochs in (2, 4):
        model, data, validation = build(), _batches(X, Y, shuffle=True), _batches(*VALIDATION)
        trainer = Trainer(model)
        callbacks, arguments = [plateau()], ARGUMENTS | {"epochs": epochs}
        trainer.fit(data, validation_data=validation, callbacks=callbacks, resume="run", **arguments)
    return Run.of(model, trainer)
