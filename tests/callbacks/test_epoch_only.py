"""A callback without its hooks of batches."""

from __future__ import annotations

import keras
import pytest

import overlap_train
from overlap_train import EpochOnly
from overlap_train._callbacks.hooks import hook_that_waits, may_change_training, wants_train_batches
from tests.callbacks.hooks import capture, restore
from tests.networks import arrays, sequential


class Busy(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_batch_end(self, batch, logs=None):
        self.model.trainable = True
        self.calls.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("end", epoch))


class Begins(Busy):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.1


def test_the_batches_are_left_out_and_hold_nothing_up():
    assert wants_train_batches(Busy())
    wrapped = EpochOnly(Busy())
    assert not wants_train_batches(wrapped)
    assert hook_that_waits(Busy(), watched=True, late=True) == "on_train_batch_end"
    assert hook_that_waits(wrapped, watched=True, late=True) is None


def test_what_it_does_at_epochs_still_counts():
    assert hook_that_waits(EpochOnly(Begins()), watched=True, late=True) == "on_epoch_begin"
    assert may_change_training(EpochOnly(keras.callbacks.ReduceLROnPlateau()))
    assert not may_change_training(EpochOnly(keras.callbacks.CSVLogger("log.csv")))


@pytest.mark.parametrize("declared", [True, False])
def test_a_declaration_is_the_wrapped_callback_s(declared):
    busy = Begins()
    busy.overlap_safe = declared
    assert EpochOnly(busy).overlap_safe is declared


def test_it_is_called_under_keras_and_remembers():
    model, busy = sequential(), Busy()
    callback = overlap_train.EpochOnly(busy)
    x, y = arrays(32)
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[callback])
    assert busy.model is model
    assert busy.calls == [("end", 0), ("end", 1)]
    state = capture(callback)
    busy.calls.append("later")
    restore(callback, state)
    assert busy.calls == [("end", 0), ("end", 1)]


@pytest.mark.parametrize("value", [None, "loss", keras.callbacks.Callback])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(TypeError, match="callback must be a Callback"):
        EpochOnly(value)
