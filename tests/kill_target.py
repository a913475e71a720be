"""A training that `test_kill.py` kills and starts again, in processes of its own."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from tests.networks import arrays, sequential
from tests.whole_fits import library_sources, test_replay

EPOCHS = 40


@dataclasses.dataclass(frozen=True)
class LongEpochs:
    """Four epochs with checkpoints inside them."""

    steps: int
    every_steps: int
    count: int = 4


@dataclasses.dataclass(frozen=True)
class FromSource:
    """Data that is no array, by its name in `sources()`, with checkpoints inside the epochs."""

    name: str
    every_steps: int = 5


def sources() -> dict[str, Any]:
    """Returns what makes each kind of such data, the steps of an epoch, and `shuffle`."""
    python = ("generator", "in Keras's order", "reshuffled", "augmented", "by layers")
    libraries = library_sources.SOURCES.items()
    return {name: test_replay.SOURCES[name] for name in python} | {
        name: (make, steps, False) for name, (make, steps, resumable) in libraries if resumable
    }


class Tell(keras.callbacks.Callback):
    """Says that training has begun, so that the killer knows from when to count."""

    def __init__(self, killer: Connection) -> None:
        super().__init__()
        self._killer = killer

    def on_train_begin(self, logs=None):
        self._killer.send("begun")


def main_killed_at(directory: Path, killer: Connection, at: int) -> None:
    """Trains, and is killed at the n-th operation on files of its checkpoints; half of a write is done."""
    folder, operations = str(directory / "checkpoints"), itertools.count(1)

    def wrap(name: str, real: Any) -> Any:
        def operation(first: Any, *arguments: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.fspath(first)
            ours = str(path).startswith(folder) and not str(path).endswith(".lock")
            if ours and next(operations) == at:
                if name == "write":
                    real(first, memoryview(arguments[0])[: len(arguments[0]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(first, *arguments, **options)

        return operation

    for name in ("open", "write", "fsync", "replace", "unlink"):
        setattr(os, name, wrap(name, getattr(os, name)))
    main(directory, killer)


def training_data(of: LongEpochs | FromSource | None) -> dict[str, Any]:
    """Returns what `fit` is told of its data."""
    if isinstance(of, FromSource):
        make, steps, shuffle = sources()[of.name]
        random.seed(1)
        np.random.seed(2)
        return {"x": make(), "epochs": EPOCHS, "steps_per_epoch": steps, "shuffle": shuffle}
    dataset = tf.data.Dataset.from_tensor_slices(arrays(400)).shuffle(400, seed=3).batch(16)
    if of is None:
        return {"x": dataset, "epochs": EPOCHS}
    return {"x": dataset.repeat(), "epochs": of.count, "steps_per_epoch": of.steps}


def main(directory: Path, killer: Connection, of: LongEpochs | FromSource | None = None) -> None:
    """Trains for many epochs on a dataset, for the given few and long ones, or on other data."""
    model = sequential(keras.optimizers.SGD(0.3, momentum=0.9))
    callbacks = [
        Tell(killer),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.7, patience=2, min_delta=0.01),
        keras.callbacks.EarlyStopping("val_loss", patience=30, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(
            directory / "best.weights.h5", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.CSVLogger(str(directory / "log.csv")),
    ]
    trainer = Trainer(model, validation=ValidationPolicy(workers=2, max_lag=1, overlap="always"))
    every_steps = None if of is None else of.every_steps
    history = trainer.fit(
        **training_data(of),
        validation_data=arrays(91, 1),
        callbacks=callbacks,
        verbose=0,
        resume=CheckpointPolicy(directory=directory / "checkpoints", every_steps=every_steps),
    )
    np.savez(
        directory / "final.npz",
        **{str(i): np.asarray(v) for i, v in enumerate((*model.variables, *model.optimizer.variables))},
    )
    (directory / "history.json").write_text(json.dumps({"epoch": history.epoch, **history.history}))
