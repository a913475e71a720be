"""The reader of hooks: ways to the training that are easily overlooked, and what is no such way."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import operator
import threading
import types
import weakref

import keras
import numpy as np
import pytest

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.hook_doings import read_hooks
from overlap_train._callbacks.hooks import may_change_training, wants_train_batches
from overlap_train._callbacks.late import late_callbacks
from tests.callbacks.hostile import HOSTILE, MODEL, Level, Made, Raw, Slotted, Thing, act

Callback = keras.callbacks.Callback
DEEP = [[[[MODEL]]]]


def late(callback, *others):
    return callback in late_callbacks(keras.callbacks.CallbackList([callback, *others]), watched=False)


@pytest.mark.parametrize("held", ["listed", "chained", "array", "space", "reference"])
def test_a_model_that_is_kept_in_something_is_reached(held):
    class Reaches(Callback):
        def on_train_batch_end(self, batch, logs=None):
            kept = getattr(self, "kept")  # noqa: B009
            kept[0].set_weights([])

    class Calls(Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.kept().trainable = False

    class Has(Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.kept.model.trainable = False

    kinds = {
        "listed": (Reaches, collections.UserList([MODEL])),
        "chained": (Reaches, collections.ChainMap({0: MODEL})),
        "array": (Reaches, np.array([MODEL, None], dtype=object)),
        "space": (Has, types.SimpleNamespace(model=MODEL)),
        "reference": (Calls, weakref.ref(MODEL)),
    }
    kind, kept = kinds[held]
    callback = kind()
    callback.kept = kept
    assert not late(callback)


@pytest.mark.parametrize("hook", HOSTILE.values(), ids=HOSTILE)
def test_a_way_to_the_training_is_seen(hook):
    callback = type("Hostile", (Callback,), {"on_train_batch_end": hook, "act": lambda self: act()})()
    callback.thing, callback.kept, callback.slotted = Thing(), [], Slotted()
    callback.file, callback.making = io.BufferedWriter(Raw()), collections.defaultdict(Made)
    callback.numbers = [Level(1), Level(2)]
    callback.set_params({"epochs": 1, "act": act})
    assert read_hooks(callback, ["on_train_batch_end"]).doing >= Doing.LOOKS
    assert wants_train_batches(callback)
    assert not late(callback)
    assert may_change_training(callback)


QUIET: dict[str, object] = {}


def quiet(hook):
    QUIET[hook.__name__] = hook
    return hook


@quiet
def skips_a_key(self, batch, logs=None):
    for name, value in logs.items():
        if name == "batch":
            continue
        if value != value:
            break
        self.kept.append(value)


@quiet
def forgives(self, batch, logs=None):
    try:
        self.kept.append(logs["loss"])
    except KeyError:
        self.kept.append(0.0)
    finally:
        self.count = batch


@quiet
def suppresses(self, batch, logs=None):
    with contextlib.suppress(KeyError):
        self.kept.append(logs["loss"])


@quiet
def locks(self, batch, logs=None):
    with self.lock:
        self.kept.append(batch)


@quiet
def a_helper_with_a_default(self, batch, logs=None):
    def scaled(value):
        return value * 2

    self.kept.append(scaled(batch))


@pytest.mark.parametrize("hook", QUIET.values(), ids=QUIET)
def test_who_keeps_what_it_is_given_is_still_called_late(hook):
    callback = type("Quiet", (Callback,), {"on_train_batch_end": hook})()
    callback.kept, callback.lock = [], threading.Lock()
    assert late(callback)


def test_the_older_super_is_read_as_the_newer_one():
    class Above(Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.seen = batch

    class Below(Above):
        def on_train_batch_end(self, batch, logs=None):
            super(Below, self).on_train_batch_end(batch, logs)  # noqa: UP008

    class Acting(Above):
        def on_train_batch_end(self, batch, logs=None):
            self.model.trainable = False

    class BelowActing(Acting):
        def on_train_batch_end(self, batch, logs=None):
            super(BelowActing, self).on_train_batch_end(batch, logs)  # noqa: UP008

    assert late(Below())
    assert not late(BelowActing())


def test_a_hook_that_fails_is_called():
    class Fails(Callback):
        def on_train_batch_end(self, batch, logs=None):
            return logs["missing"]

    assert wants_train_batches(Fails())


def test_long_lists_of_numbers_are_looked_through():
    class Keeps(Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.kept.append(batch)

    callback = Keeps()
    callback.kept = list(range(100_000))
    assert late(callback)
    callback.kept.append(MODEL)
    assert not late(callback)


def test_what_a_library_s_callback_calls_may_have_been_replaced():
    class Looks(keras.callbacks.EarlyStopping):
        def get_monitor_value(self, logs):
            act()

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)

    given = keras.callbacks.EarlyStopping()
    given.get_monitor_value = act
    reading = read_hooks(Looks(), ["on_epoch_end"], watching=(keras.callbacks.EarlyStopping,))
    assert reading.doing is Doing.ANYTHING
    assert may_change_training(given)
    assert not may_change_training(keras.callbacks.EarlyStopping())


class Config:
    enabled = False


def test_a_setting_that_the_code_sets_by_another_name_is_not_relied_upon():
    class Arms(Callback):
        def __init__(self):
            super().__init__()
            self.config = Config()

        def on_epoch_begin(self, epoch, logs=None):
            self.config.enabled = epoch > 2

        def on_train_batch_end(self, batch, logs=None):
            if self.config.enabled:
                self.model.optimizer.learning_rate = 0.1

    assert not late(Arms())


def test_a_setting_that_another_callback_sets_late_is_not_relied_upon():
    class Waits(Callback):
        config = Config()

        def on_train_batch_end(self, batch, logs=None):
            if self.config.enabled:
                self.model.optimizer.learning_rate = 0.1

    class Arms(Callback):
        config = Waits.config

        def on_train_batch_begin(self, batch, logs=None):
            self.config.enabled = batch > 2

    assert late(Arms())
    assert not late(Arms(), Waits())


OPERATORS = {
    "attrgetter": lambda self, batch, logs=None: operator.attrgetter("model")(self),
    "methodcaller": lambda self, batch, logs=None: operator.methodcaller("act")(self.thing),
    "reduce": lambda self, batch, logs=None: functools.reduce(act, [1, 2]),
    "deep": lambda self, batch, logs=None: DEEP[0][0][0][0].set_weights([]),
}


@pytest.mark.parametrize("hook", OPERATORS.values(), ids=OPERATORS)
def test_functions_that_reach_by_name_are_anything(hook):
    callback = type("Mine", (Callback,), {"on_train_batch_end": hook})()
    callback.thing = Thing()
    assert read_hooks(callback, ["on_train_batch_end"]).doing is Doing.ANYTHING
