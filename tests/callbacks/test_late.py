"""Hooks inside an epoch are called late for those that cannot tell, in the order of Keras."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._callbacks.late import EpochHooks, late_callbacks
from tests.networks import arrays, sequential

kc = keras.callbacks


class Keeps(kc.Callback):
    """Keeps every call of its hooks."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(("begin", epoch, {}))

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("batch", batch, {}))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("batch end", batch, dict(logs)))


class Stops(Keeps):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


class Every(Keeps):
    """Keeps as many batches as it is set to."""

    every = 1

    def on_train_batch_end(self, batch, logs=None):
        if batch % self.every == 0:
            self.calls.append(("batch end", batch, dict(logs)))


def late(*callbacks, watched=False):
    return late_callbacks(kc.CallbackList(list(callbacks)), watched=watched)


def test_who_only_keeps_is_late_and_who_acts_is_not():
    keeps, stops = Keeps(), Stops()
    assert late(keeps) == [keeps]
    assert late(stops) == []
    assert late(stops, keeps, kc.History()) == [keeps]
    assert late(kc.EarlyStopping("loss")) == []  # has no hook that orders epochs


class Later(kc.ModelCheckpoint):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.stop_training = False


def test_keras_s_that_only_note_the_epoch_are_late(tmp_path):
    path = str(tmp_path / "weights.keras")
    notes = kc.ModelCheckpoint(path)
    assert late(notes) == [notes]
    assert late(kc.ModelCheckpoint(path, save_freq=3), Later(path)) == []


def test_the_epoch_that_a_checkpoint_callback_notes_is_never_seen_ahead(tmp_path):
    class Looks(kc.Callback):
        def __init__(self, other):
            super().__init__()
            self.other, self.seen = other, []

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append(self.other._current_epoch)

        def on_train_end(self, logs=None):
            self.seen.append(self.other._current_epoch)

    x, y = arrays(96)
    found = []
    for ours in (False, True):
        model, notes = sequential(), kc.ModelCheckpoint(str(tmp_path / "weights.keras"))
        looks = Looks(notes)
        trained = Trainer(model, validation=ValidationPolicy(overlap="always", max_lag=2)) if ours else model
        stop = kc.EarlyStopping(min_delta=1e9, patience=2)
        trained.fit(x, y, epochs=6, validation_split=0.5, verbose=0, callbacks=[stop, notes, looks])
        found.append(looks.seen)
    assert found[1] == found[0] == [0, 1, 2, 2]


def test_what_others_may_look_at_is_kept_in_time():
    assert late(Keeps(), watched=True) == []


def test_a_list_that_calls_them_itself_is_left_alone():
    class Own(kc.CallbackList):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)

    keeps = Keeps()
    assert late_callbacks(Own([keeps]), watched=False) == []
    assert late_callbacks(type("Named", (kc.CallbackList,), {})([keeps]), watched=False) == [keeps]
    assert late_callbacks(kc.CallbackList([keeps]), watched=False) == [keeps]


def test_who_sets_what_another_one_relies_on_is_called_in_time():
    every = Every()

    class Sets(Keeps):
        def on_epoch_begin(self, epoch, logs=None):
            self.every = epoch

    sets = Sets()
    assert late(sets) == [sets]
    assert sets not in late(sets, every)
    assert every in late(sets, every)


@pytest.fixture
def scene():
    """Returns hooks of a late callback and of one that is not, with what says whether an epoch waits."""
    keeps, at_once, waits = Keeps(), Keeps(), [True]
    hooks = EpochHooks(kc.CallbackList([at_once, keeps]), [keeps], lambda: waits[0])
    return hooks, keeps, at_once, waits


def test_hooks_wait_for_the_epochs_before_and_are_dropped_with_theirs(scene):
    hooks, keeps, _, waits = scene
    waits[0] = False
    hooks.epoch_begin(0)
    assert keeps.calls == [("begin", 0, {})]
    waits[0] = True
    hooks.epoch_begin(1)
    hooks.batch_begin(1, 0)
    hooks.epoch_begin(2)
    assert len(keeps.calls) == 1
    hooks.release(1)
    assert keeps.calls[1:] == [("begin", 1, {}), ("batch", 0, {})]
    hooks.drop()
    hooks.release(2)
    assert len(keeps.calls) == 3


def test_others_are_called_at_once(scene):
    hooks, keeps, at_once, _ = scene
    hooks.batch_end(1, 0, {"loss": 1.0})
    assert at_once.calls == [("batch end", 0, {"loss": 1.0})]
    assert not keeps.calls


def test_logs_are_those_of_the_time_of_the_call(scene):
    hooks, keeps, at_once, _ = scene
    logs = {"loss": tf.constant(1.0)}
    hooks.batch_end(1, 0, logs)
    at_once.calls[0][2]["loss"] = 7.0
    logs["loss"] = tf.constant(2.0)
    hooks.release(1)
    assert keeps.calls == [("batch end", 0, {"loss": 1.0})]


def test_where_nobody_is_late_all_are_called_at_once():
    keeps = Keeps()
    hooks = EpochHooks(kc.CallbackList([keeps]), [], lambda: True)
    hooks.epoch_begin(3)
    assert keeps.calls == [("begin", 3, {})]
