"""The first hooks of a fit, called before its steps are traced: a trace sees what callbacks set there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._callbacks.listeners import listeners
from overlap_train._fit.request import FitRequest
from overlap_train._keras import data as keras_data
from overlap_train._keras import training as keras_training


@dataclass(frozen=True)
class Opening:
    """Where a fit stands before its first step.

    `begun` says whether the first epoch's and batch's hooks have been called, and `cut` whether the latter
    has said that there is no data. A callback that compiles the model takes its train function away.
    """

    epoch: int
    begun: bool
    train_function: Any
    cut: bool = False


def open_fit(request: FitRequest, callbacks: Any, *, traced: bool) -> Opening:
    """Calls `on_train_begin`, and the hooks of the first epoch and batch if nothing has been traced yet.

    `traced` says that the steps had to be traced before, as for a training that may be resumed.
    """
    model = request.model
    model.stop_training = False
    function = keras_training.begin_training(model)
    keras_training.require_stock_function(model)
    callbacks.on_train_begin()
    epoch = keras_training.initial_epoch(model, request.initial_epoch)  # BackupAndRestore may have set it
    if traced or epoch >= request.epochs:
        return Opening(epoch, False, function)
    model.reset_metrics()
    callbacks.on_epoch_begin(epoch)
    if any(map(wants_train_batches, listeners(callbacks))):
        request.feed.prepare()  # Keras has made the iterator before the first batch's hook
        try:
            callbacks.on_train_batch_begin(0)
        except keras_data.OUT_OF_DATA:
            return Opening(epoch, True, function, cut=True)
    return Opening(epoch, True, function)
