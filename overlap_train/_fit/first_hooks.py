"""The first hooks of a fit, called before its steps are traced: a trace sees what callbacks set there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras

from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._callbacks.listeners import listeners
from overlap_train._keras import data as keras_data
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState
from overlap_train._validation.suite import ValidationSuite
from overlap_train._validation.validation_step import TracedWith
from overlap_train.records import ValidationResult

__all__ = ["BuildSuite", "FirstValidation", "Opening", "open_fit"]


@dataclass(frozen=True)
class Opening:
    """Where a fit stands before its first step.

    `begun` and `cut` say whether the first epoch's hooks have been called, and whether the first batch's has
    said that there is no data. A callback that compiles the model takes its train function away.
    """

    epoch: int
    begun: bool
    train_function: Any
    cut: bool = False


def open_fit(
    model: keras.Model,
    callbacks: Any,
    *,
    initial_epoch: int,
    epochs: int,
    traced: bool,
    begin_pass: Callable[[], None] = lambda: None,
) -> Opening:
    """Calls `on_train_begin`, and the hooks of the first epoch and batch if nothing has been traced yet.

    `traced` says that the steps had to be traced before, as for a training that may be resumed; `begin_pass`
    makes the iterator that a batch's hook finds made. BackupAndRestore may know the first epoch better.
    """
    model.stop_training = False
    function = keras_training.begin_training(model)
    keras_training.require_stock_function(model)
    callbacks.on_train_begin()
    epoch = keras_training.initial_epoch(model, initial_epoch)
    if traced or epoch >= epochs:
        return Opening(epoch, False, function)
    model.reset_metrics()
    callbacks.on_epoch_begin(epoch)
    if any(map(wants_train_batches, listeners(callbacks))):
        begin_pass()
        try:
            callbacks.on_train_batch_begin(0)
        except keras_data.OUT_OF_DATA:
            return Opening(epoch, True, function, cut=True)
    return Opening(epoch, True, function)


BuildSuite: TypeAlias = Callable[[contextlib.ExitStack], tuple[ModelState, ValidationSuite]]


class FirstValidation:
    """Makes the first validation again where its trace was made too early. On the training thread."""

    def __init__(self, traced_with: TracedWith | None, build: BuildSuite, say: Callable[[str], None]) -> None:
        self._traced_with = traced_with
        self._build = build
        self._say = say

    def __call__(self, name: str, most: int | None = None) -> ValidationResult | None:
        """Returns the result of a set for the model as it is, or None if what has been traced will do.

        The set's `on_test_begin` has been called.
        """
        traced_with = self._traced_with
        changed = None if traced_with is None or traced_with.validated else traced_with.changed()
        if traced_with is None or changed is None:
            return None
        self.end()
        traced_with.forget_validation()
        self._say(f"{changed} was set before the first validation, which is traced again")
        with contextlib.ExitStack() as resources:
            state, suite = self._build(resources)
            return suite.evaluate(name, state.read(), most)

    def end(self) -> None:
        """Says that the first validation has been made: what is set from now on makes no other trace."""
        if self._traced_with is not None:
            self._traced_with.validated = True
