"""How Keras validates within `fit`: its test function, or another `evaluate` than its own.

Leans on `TFEpochIterator`, `_eval_epoch_iterator` and the argument `_use_cached_eval_dataset`. On the
training thread.
"""

from __future__ import annotations

from typing import Any

import keras
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from overlap_train._keras import methods

__all__ = [
    "evaluate_as_in_fit",
    "forget_evaluation",
    "has_own_test_function",
    "test_function",
    "validates_itself",
]


def evaluate_as_in_fit(
    model: keras.Model, data: Any, *, batch_size: int | None, steps: int | None, callbacks: Any
) -> Any:
    """Calls `model.evaluate` as `fit` does for a validation (`_eval_epoch_iterator`); returns its logs."""
    x, y, sample_weight = data
    if getattr(model, "_eval_epoch_iterator", None) is None:
        model._eval_epoch_iterator = TFEpochIterator(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            distribute_strategy=model.distribute_strategy,
            steps_per_execution=model.steps_per_execution,
            steps_per_epoch=steps,
            shuffle=False,
        )
    return model.evaluate(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps=steps,
        callbacks=callbacks,
        return_dict=True,
        _use_cached_eval_dataset=True,
    )


def forget_evaluation(model: keras.Model) -> None:
    """Lets go of what `evaluate_as_in_fit` keeps between two validations, as `fit` does at its end."""
    if getattr(model, "_eval_epoch_iterator", None) is not None:
        del model._eval_epoch_iterator


def has_own_test_function(model: keras.Model) -> bool:
    """Whether a validation runs what a user has made, and not `test_step` (`make_test_function`)."""
    if methods.is_replaced(model, "make_test_function"):
        return True
    return model.test_function is not None and not methods.is_stock_method(model.test_function)


def validates_itself(model: keras.Model) -> str | None:
    """Returns who validates within `fit` in place of Keras: code of the model's own, or a library's."""
    if has_own_test_function(model):
        return f"{type(model).__name__} makes its test function itself"
    if not methods.is_replaced(model, "evaluate"):
        return None
    owner = methods.overriding_class(model, "evaluate")
    if owner is None:
        return f"keras.Model.evaluate is that of {methods.patched_by(model, 'evaluate')}"
    return f"{owner.__name__} has an evaluate of its own"


def test_function(model: keras.Model) -> Any:
    """Returns the model's test function, made as `evaluate` does, without tracing it (`test_function`)."""
    model.make_test_function()
    return model.test_function
