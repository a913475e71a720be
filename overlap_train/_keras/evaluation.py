"""A validation by Keras's own `evaluate`, with the iterator that its `fit` keeps, and what it has drawn.

Leans on `TFEpochIterator`, `_eval_epoch_iterator` and the argument `_use_cached_eval_dataset`. On the
training thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._keras.data import OUT_OF_DATA, warn_out_of_data
from overlap_train._keras.names import TFEpochIterator


@dataclass(frozen=True)
class Pass:
    """The batches that one validation has drawn."""

    iterators: int  # made over the data, including those of which Keras drew a batch beforehand
    batches: int


class _CountedEpochIterator(TFEpochIterator):  # type: ignore[misc]
    """Keras's iterator, which counts what it draws, and warns once where Keras does each time."""

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
        known = self.data_adapter.num_batches is not None
        if known or self.steps_per_epoch or not self.groups or not self.has_warned:
            self.has_warned = True
            warn_out_of_data(known=known)

    def take_pass(self) -> Pass:
        """Return what has been drawn since the last call."""
        iterators, self.iterators = self.iterators, 0
        batches = self.groups * self.steps_per_execution
        return Pass(iterators, min(batches, self.data_adapter.num_batches or batches))


def forget_iterator(model: keras.Model) -> None:
    """Have Keras's next `fit` make its iterator of validation data, behind one that failed too."""
    if "_eval_epoch_iterator" in vars(model):
        del model._eval_epoch_iterator


@dataclass(eq=False)
class FitEvaluation:
    """Calls `model.evaluate` on `data()`, `(x, y, sample_weight)`, with one iterator, as `fit` does."""

    _model: keras.Model
    _data: Callable[[], tuple[Any, Any, Any]]
    _batch_size: int | None
    _steps: int | None
    _iterator: Any = None

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
