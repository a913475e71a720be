"""How Keras's `fit` trains and validates: its functions, the grouping of its steps, its caps.

Leans on `_call_has_training_arg`, `_initial_epoch`, `_should_trace`, `TFEpochIterator`,
`_eval_epoch_iterator`, the argument `_use_cached_eval_dataset` and TensorFlow's `is_op_determinism_enabled`.
On the training thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from tensorflow.python.framework import config as tf_config

from overlap_train._keras import models
from overlap_train._keras.data import OUT_OF_DATA, warn_out_of_data
from overlap_train._keras.names import BEFORE_3_16, TFEpochIterator
from overlap_train._keras.tracebacks import warn_user


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
    limit = keras.config.max_steps_per_epoch()
    if not limit or (steps and steps <= limit):
        return steps
    warn_user(f"Limiting steps_per_epoch to {limit}")
    return int(limit)


def capped_epochs(epochs: int) -> int:
    """Return the number of epochs, capped by `keras.config.set_max_epochs`, with Keras's warning."""
    limit = keras.config.max_epochs()
    if not limit or epochs <= limit:
        return epochs
    warn_user(f"Limiting epochs to {limit}")
    return int(limit)


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


def train_function(model: keras.Model) -> Any:
    """Return the train function of `begin_training`, or its replacement by a callback, or None."""
    return model.train_function


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


@dataclass(frozen=True)
class Pass:
    """The batches that one validation has drawn."""

    iterators: int  # made over the data, including those of which Keras drew a batch beforehand
    batches: int


class _CountedEpochIterator(TFEpochIterator):  # type: ignore[misc]
    """Keras's iterator, which counts what it draws, and warns of the user's line."""

    iterators = groups = 0
    has_warned = False

    def _get_iterator(self) -> Any:
        self.iterators += 1
        return super()._get_iterator()

    def reset(self) -> None:
        self.groups = 0
        super().reset()

    def __next__(self) -> Any:
        group = super().__next__()
        self.groups += 1
        return group

    def catch_stop_iteration(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(super().catch_stop_iteration())
        stack.push(self._note_end)
        return stack

    def _note_end(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Do not count the group that was to be drawn when the data ended."""
        if isinstance(error, OUT_OF_DATA):
            self.groups -= 1

    def _interrupted_warning(self) -> None:
        # Where the length of the data is unknown, warn once and not in each validation.
        expected = self.steps_per_epoch or self.data_adapter.num_batches is not None
        if expected or not self.groups or not self.has_warned:
            self.has_warned = True
            warn_out_of_data()

    def take_pass(self) -> Pass:
        """Return what has been drawn since the last call."""
        iterators, self.iterators = self.iterators, 0
        batches = self.groups * self.steps_per_execution
        return Pass(iterators, min(batches, self.data_adapter.num_batches or batches))


class FitEvaluation:
    """Calls `model.evaluate` on `data()`, `(x, y, sample_weight)`, with one iterator, as `fit` does."""

    def __init__(
        self,
        model: keras.Model,
        data: Callable[[], tuple[Any, Any, Any]],
        batch_size: int | None,
        steps: int | None,
    ) -> None:
        self._model, self._data, self._batch_size, self._steps = model, data, batch_size, steps
        self._iterator: Any = None

    def __call__(self, callbacks: Any) -> tuple[Any, Pass]:
        """Return the logs, and what `evaluate` has drawn."""
        model = self._model
        data = dict(zip(("x", "y", "sample_weight"), self._data(), strict=True), batch_size=self._batch_size)
        if self._iterator is None:
            self._iterator = _CountedEpochIterator(
                **data,
                distribute_strategy=model.distribute_strategy,
                steps_per_execution=model.steps_per_execution,
                steps_per_epoch=self._steps,
                shuffle=False,
            )
        # Only for this set: Keras's `fit` has one too, and leaves it in the model if it ends by an error.
        before = getattr(model, "_eval_epoch_iterator", None)
        model._eval_epoch_iterator = self._iterator
        try:
            logs = model.evaluate(
                **data,
                steps=self._steps,
                callbacks=callbacks,
                return_dict=True,
                _use_cached_eval_dataset=True,
            )
        finally:
            model._eval_epoch_iterator = before
        return logs, self._iterator.take_pass()

    def close(self) -> None:
        """Release the data."""
        self._iterator = None


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
