"""What Keras's `fit` goes by: its train function, the groups of its steps, where it begins and its caps.

Leans on `_call_has_training_arg`, `_initial_epoch`, `_should_trace` and TensorFlow's
`is_op_determinism_enabled`. On the training thread.
"""

from __future__ import annotations

from typing import Any

import keras
from tensorflow.python.framework import config as tf_config

from overlap_train._keras import methods
from overlap_train._keras.tracebacks import warn_user

__all__ = [
    "begin_training",
    "capped_epochs",
    "capped_steps",
    "forward",
    "initial_epoch",
    "is_deterministic",
    "profiles",
    "require_stock_function",
    "steps_per_execution",
    "train_function",
]


def steps_per_execution(model: keras.Model) -> int:
    """Return how many steps Keras makes between two calls of the batch hooks (`steps_per_execution`)."""
    return int(getattr(model, "steps_per_execution", None) or 1)


def capped_steps(steps: int | None) -> int | None:
    """Return steps of an epoch as `keras.config.set_max_steps_per_epoch` caps them, with Keras's warning."""
    limit = keras.config.max_steps_per_epoch()
    if not limit or (steps and steps <= limit):
        return steps
    warn_user(f"Limiting steps_per_epoch to {limit}")
    return int(limit)


def begin_training(model: keras.Model) -> Any:
    """Make the model's train function as `fit` does, without tracing it; return it (`train_function`).

    `compile` takes it away and `make_train_function(force=True)` makes another one: whoever holds this one
    can tell that a callback did so.
    """
    model.make_train_function()
    return model.train_function


def require_stock_function(model: keras.Model) -> None:
    """Raise ValueError if the model's train function is not the one that Keras makes (`train_function`)."""
    function = model.train_function
    if methods.is_replaced(model, "make_train_function") or not (
        function is None or methods.is_stock_method(function)
    ):
        raise ValueError(
            f"{type(model).__name__} makes its train function itself (make_train_function), while Trainer "
            "makes one from train_step: override train_step instead, or train with keras.Model.fit"
        )


def train_function(model: keras.Model) -> Any:
    """Return what `begin_training` returned, or what a callback has put in its place, or None."""
    return model.train_function


def initial_epoch(model: keras.Model, default: int) -> int:
    """Return where BackupAndRestore found that training goes on (`_initial_epoch`), or `default`."""
    return getattr(model, "_initial_epoch", None) or default


def profiles(callback: keras.callbacks.TensorBoard) -> bool:
    """Whether a TensorBoard callback profiles batches (`_should_trace`)."""
    return bool(callback._should_trace)


def capped_epochs(epochs: int) -> int:
    """Return a number of epochs, capped as `keras.config.set_max_epochs` says for debugging."""
    limit = keras.config.max_epochs()
    if not limit or epochs <= limit:
        return epochs
    warn_user(f"Limiting epochs to {limit}")
    return int(limit)


def forward(model: keras.Model, x: Any) -> Any:
    """Call a model for training as its `train_step` does (`_call_has_training_arg`)."""
    return model(x, training=True) if model._call_has_training_arg else model(x)


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` has been called."""
    return bool(tf_config.is_op_determinism_enabled())
