"""The first hooks of a fit, called before its steps are traced: a trace sees what callbacks set there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._callbacks.listeners import listeners
from overlap_train._keras import data as keras_data
from overlap_train._keras import training as keras_training

__all__ = ["Opening", "open_fit"]


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
