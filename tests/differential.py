"""One run with Keras and one with us, with the same callbacks, compared in everything that can be seen."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import assert_alike, assert_same_history, assert_same_weights

BuildCallbacks = Callable[[Path], list[keras.callbacks.Callback]]


@dataclass
class Run:
    """What can be seen of a finished fit."""

    model: keras.Model
    history: dict[str, list[float]]
    epochs: list[int]
    files: dict[str, Any] = field(default_factory=dict)


def run_keras(build, callbacks: BuildCallbacks, directory: Path, data: tuple, **arguments) -> Run:
    model = build()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`shuffle=True` was passed")
        warnings.filterwarnings("ignore", message=".*ran out of data")
        model.fit(*data, callbacks=callbacks(directory), verbose=0, **arguments)
    return Run(model, model.history.history, model.history.epoch, read_files(directory))


def run_ours(
    build, callbacks: BuildCallbacks, directory: Path, data: tuple, policy: ValidationPolicy, **arguments
) -> tuple[Run, Trainer]:
    model = build()
    trainer = Trainer(model, validation=policy)
    trainer.fit(*data, callbacks=callbacks(directory), verbose=0, **arguments)
    return Run(model, model.history.history, model.history.epoch, read_files(directory)), trainer


def assert_same_run(actual: Run, expected: Run, rtol: float = 1e-5) -> None:
    """History, epochs, weights, optimizer state and files."""
    assert actual.epochs == expected.epochs
    assert_same_history(actual.history, expected.history, rtol)
    assert_same_weights(actual.model, expected.model, rtol)
    assert bool(actual.model.stop_training) == bool(expected.model.stop_training)
    assert_alike(actual.files, expected.files, rtol)


def read_files(directory: Path) -> dict[str, Any]:
    """Returns what the callbacks wrote: weights, tables and TensorBoard scalars, by relative path."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.suffix == ".keras":
            model = keras.saving.load_model(path)
            variables = (*model.variables, *model.optimizer.variables)  # seed generators have running names
            found[name] = {str(i): np.asarray(variable) for i, variable in enumerate(variables)}
        elif name.endswith(".weights.h5"):
            found[name] = _h5(path)
        elif path.suffix == ".csv":
            with path.open() as file:
                rows = list(csv.DictReader(file))
            found[name] = {
                f"{row['epoch']} {key}": _number(value) for row in rows for key, value in row.items()
            }
        elif path.suffix == ".notes":
            found[name] = path.read_text()
        elif "tfevents" in name:
            found.setdefault(str(Path(name).parent), {}).update(_scalars(path))
    # Which of several values is written first does not count.
    return {k: dict(sorted(v.items())) if isinstance(v, dict) else v for k, v in found.items()}


def _number(text: str) -> Any:
    """Returns a cell of a table as a number, or as the text that an array has there."""
    try:
        return np.nan if text in ("", "NA") else float(text)
    except ValueError:
        return text


def _h5(path: Path) -> dict[str, np.ndarray]:
    import h5py

    arrays: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: arrays.update({name: item[()]}) if hasattr(item, "shape") else None
        )
    return arrays


def _scalars(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            content = tf.make_ndarray(value.tensor)
            # Times differ, and so does what a summary says of the run's surroundings.
            if content.dtype.kind == "f" and "per_second" not in value.tag:
                values[f"{value.tag} at {event.step}"] = content
    return values
