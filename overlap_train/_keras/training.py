"""How Keras's `fit` trains and validates: its functions, the grouping of its steps, its caps.

Leans on `_call_has_training_arg`, `_initial_epoch`, `_should_trace` and TensorFlow's
`is_op_determinism_enabled`. On the training thread.
"""

from __future__ import annotations

from typing import Any

import keras
from tensorflow.python.framework import config as tf_config

from overlap_train._keras import models
from overlap_train._keras.names import BEFORE_3_16, EpochIterator, KerasTrainer
from overlap_train._keras.tracebacks import warn_as_keras


def steps_per_execution(model: keras.Model) -> int:
    """Return how many steps Keras runs between two calls of the batch hooks (`steps_per_execution`)."""
    return int(getattr(model, "steps_per_execution", None) or 1)


def traces_first_batch(model: keras.Model) -> bool:
    """Whether Keras traces a step for the size of the first batch, as from 3.16 on, and not for any size."""
    return not BEFORE_3_16 and steps_per_execution(model) == 1


def counts_without_batch(model: keras.Model) -> bool:
    """Whether what a step does without its batch is done once more where the data ends and says so only then.

    Before 3.16 the compiled call that finds no batch has counted a step of the optimizer and drawn seeds.
    """
    compiled = not (model.run_eagerly or getattr(model, "jit_compile", False))
    return BEFORE_3_16 and compiled and steps_per_execution(model) == 1


def capped_steps(steps: int | None) -> int | None:
    """Return an epoch's steps, capped by `keras.config.set_max_steps_per_epoch`, with Keras's warning."""
    return _capped("steps_per_epoch", steps, keras.config.max_steps_per_epoch())


def capped_epochs(epochs: int) -> int:
    """Return the number of epochs, capped by `keras.config.set_max_epochs`, with Keras's warning."""
    return _capped("epochs", epochs, keras.config.max_epochs()) or 0


def _capped(name: str, count: int | None, limit: int | None) -> int | None:
    if not limit or (count is not None and count <= limit):
        return count
    giver = KerasTrainer.fit if name == "epochs" else EpochIterator.__init__
    warn_as_keras(f"Limiting {name} to {limit}", giver, "Limiting")
    return limit


def begin_training(model: keras.Model) -> Any:
    """Make and return the train function without tracing it; by another one a callback shows itself."""
    model.make_train_function()
    return model.train_function


def require_stock_function(model: keras.Model) -> None:
    """Raise ValueError if the model's train function is not the one that Keras makes (`train_function`)."""
    function = model.train_function
    if models.is_replaced(model, "make_train_function") or not (
        function is None or models.is_stock_method(function)
    ):
        raise ValueError(
            f"{type(model).__name__} makes its train function itself (make_train_function), while Trainer "
            "makes one from train_step: override train_step instead, or train with keras.Model.fit"
        )


def initial_epoch(model: keras.Model, default: int) -> int:
    """Return the epoch from which BackupAndRestore resumes the training (`_initial_epoch`), or `default`."""
    return getattr(model, "_initial_epoch", None) or default


def profiles(callback: keras.callbacks.TensorBoard) -> bool:
    """Whether a TensorBoard callback profiles batches (`_should_trace`)."""
    return bool(callback._should_trace)


def forward(model: keras.Model, x: Any) -> Any:
    """Call a model for training as its `train_step` does (`_call_has_training_arg`)."""
    return model(x, training=True) if model._call_has_training_arg else model(x)


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` has been called."""
    return bool(tf_config.is_op_determinism_enabled())


def has_own_test_function(model: keras.Model) -> bool:
    """Whether a validation runs the user's own test function, and not `test_step` (`make_test_function`)."""
    if models.is_replaced(model, "make_test_function"):
        return True
    return model.test_function is not None and not models.is_stock_method(model.test_function)


def validates_itself(model: keras.Model) -> str | None:
    """Return a text that names the code that validates within `fit` instead of Keras's, or None."""
    if has_own_test_function(model):
        return f"{type(model).__name__} makes its test function itself"
    if not models.is_replaced(model, "evaluate"):
        return None
    owner = models.overriding_class(model, "evaluate")
    if owner is None:
        return f"keras.Model.evaluate is that of {models.patched_by(model, 'evaluate')}"
    return f"{owner.__name__} has an evaluate of its own"


def test_function(model: keras.Model) -> Any:
    """Make and return the model's test function as `evaluate` does, without tracing it (`test_function`)."""
    model.make_test_function()
    return model.test_function
