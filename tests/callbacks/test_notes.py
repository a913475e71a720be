"""The whitelist: what merely notes or computes, and ways to the training that are easily overlooked."""

import collections
import functools
import io
import itertools
import logging
import sys
import threading
import weakref
from functools import partial
from unittest import mock

import keras
import numpy as np
import pytest

from overlap_train._callbacks.hooks import TEST_BATCH_HOOKS, acts_in, hook_that_waits
from overlap_train._callbacks.notes import only_computes, only_notes
from tests.callbacks import people
from tests.callbacks.hostile import HOSTILE, MODEL, Handler, Level, Made, Raw, Slotted, Thing, act

Callback = keras.callbacks.Callback
HOOK = "on_train_batch_end"
RUN = exec


def of_hook(hook, **attributes):
    return type("Mine", (Callback,), {HOOK: hook, "act": lambda self, *_: act(), **attributes})()


@pytest.mark.parametrize("name", {**people.AHEAD, **people.IN_STEP})
def test_people_s_hooks_of_batches_wait_only_where_they_have_to(name, tmp_path):
    callback = {**people.AHEAD, **people.IN_STEP}[name](tmp_path)
    waits = hook_that_waits(callback, watched=False, late=True) or acts_in(callback, TEST_BATCH_HOOKS)
    assert bool(waits) == (name in people.IN_STEP)


HELD = {
    "listed": collections.UserList([MODEL]),
    "in an array": np.array([MODEL, None], dtype=object),
    "referred to": weakref.ref(MODEL),
    "deep": [[[[MODEL]]]],
    "a key": {Thing(): 1},
    "bound": MODEL.set_weights,
    "a part": functools.partial(act),
    "wrapped": functools.lru_cache(act),
    "mapped": map(act, [1]),
    "vectorized": np.vectorize(act),
    "made when missing": collections.defaultdict(act),
    "written to": io.TextIOWrapper(io.BufferedWriter(Raw())),
    "a number": Level(3),
    "a tensor": keras.ops.zeros(2),
    "a module": np.random,
}


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
@pytest.mark.parametrize("where", ["attribute", "attribute of the class", "closure", "default"])
def test_what_is_held_may_lead_to_the_training(held, where):
    hooks = {
        "closure": lambda self, batch, logs=None: print(held),
        "default": lambda self, batch, logs=None, kept=held: print(kept),
    }
    callback = of_hook(hooks.get(where, lambda self, batch, logs=None: print(self.kept)))
    if where == "attribute":
        callback.kept = held
    elif where == "attribute of the class":
        type(callback).kept = held
    assert not only_notes(callback, [HOOK])


class Ways:
    """Others than those of `hostile`, as they do not act by themselves."""

    def a_frame(self, batch, logs=None):
        numbers = (n for n in (1, 2))
        numbers.gi_frame.f_back.f_locals["self"].model.trainable = False

    def a_module_within_a_module(self, batch, logs=None):
        logging.sys.modules["keras"].backend.set_epsilon(1.0)

    def a_method_is_replaced(self, batch, logs=None):
        self.on_epoch_end = print  # which is harmless itself

    def a_setting_of_keras(self, batch, logs=None):
        keras.backend.set_epsilon(1.0)

    def itself_among_others(*arguments, logs=None):
        arguments[0].model.trainable = False

    def a_builtin_by_another_name(self, batch, logs=None):
        RUN("MODEL.trainable = False")

    def a_class_leads_to_it(self, batch, logs=None):
        logging.Logger.manager.loggerDict["hostile"].warning("x")

    def another_function_by_its_name(me, batch, logs=None):
        def me(): ...

        me.root = 1


WAYS = HOSTILE | {name: hook for name, hook in vars(Ways).items() if not name.startswith("_")}


@pytest.mark.parametrize("hook", WAYS.values(), ids=WAYS)
def test_a_way_to_the_training_is_seen(hook):
    callback = of_hook(hook)
    callback.thing, callback.kept, callback.slotted = Thing(), [], Slotted()
    callback.file, callback.making = io.BufferedWriter(Raw()), collections.defaultdict(Made)
    callback.numbers = [Level(1), Level(2)]
    callback.set_params({"epochs": 1, "act": act})
    assert not only_notes(callback, [HOOK])
    callback.on_test_batch_end = getattr(callback, HOOK)
    assert acts_in(callback, TEST_BATCH_HOOKS)


def test_attributes_and_classes_that_act_by_themselves_are_not_believed():
    def note(self, batch, logs=None):
        self.kept = batch

    class Sets(Callback):
        def __setattr__(self, name, value):
            act()

    class Asks(Callback):
        def __getattr__(self, name):
            return act()

    class Property(Callback):
        kept = property(lambda self: 1, lambda self, value: act())

    assert only_notes(of_hook(note), [HOOK])
    for base in (Sets, Asks, Property):
        assert not only_notes(type("Mine", (base,), {HOOK: note})(), [HOOK])


class Base(Callback):
    def on_train_batch_end(self, batch, logs=None):
        act()

    @property
    def shown(self):
        return act()


class OnlyKeeps(Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.kept = batch


class AsksBase(Base):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)


class AsksByName(Base):
    def on_train_batch_end(self, batch, logs=None):
        super(AsksByName, self).on_train_batch_end(batch, logs)  # noqa: UP008


class AsksBehind(OnlyKeeps):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)


class AsksAside(AsksBehind, Base):
    pass


class HasBetween(AsksBehind):
    on_train_batch_end = AsksBase.on_train_batch_end


class ReadsProperty(Base):
    def on_train_batch_end(self, batch, logs=None):
        self.kept = self.shown


class SetsInBase(OnlyKeeps):
    def on_train_batch_end(self, batch, logs=None):
        super().kept = batch


def test_what_a_base_class_does_is_looked_at():
    assert only_notes(AsksBehind(), [HOOK])
    assert only_notes(AsksAside(), [HOOK])  # whose next class is `OnlyKeeps`
    for kind in (AsksBase, AsksByName, HasBetween, ReadsProperty, SetsInBase):
        assert not only_notes(kind(), [HOOK])
    between = type("Between", (AsksBehind, type("Acts", (OnlyKeeps,), {HOOK: Base.on_train_batch_end})), {})
    assert not only_notes(between(), [HOOK])


def test_what_is_printed_and_logged_may_reach_code_of_the_user_s():
    def prints(self, batch, logs=None):
        print(batch)

    def logs_it(self, batch, logs=None):
        logging.info("%s", batch)

    class Tee(io.TextIOBase):
        def write(self, text):
            return act()

    assert only_notes(of_hook(prints), [HOOK])
    assert only_notes(of_hook(logs_it), [HOOK])
    for stream in (Tee(), io.TextIOWrapper(io.BufferedWriter(Raw()))):
        with mock.patch.object(sys, "stdout", stream):
            assert not only_notes(of_hook(prints), [HOOK])
    handler = Handler()
    logging.root.addHandler(handler)
    try:
        assert not only_notes(of_hook(logs_it), [HOOK])
    finally:
        logging.root.removeHandler(handler)


def test_code_without_a_source_may_do_anything():
    scope = {}
    exec("def hook(self, batch, logs=None):\n    self.kept = batch\n", scope)
    assert not only_notes(of_hook(scope["hook"]), [HOOK])


def test_an_edited_source_is_not_believed(tmp_path):
    source, path = "def hook(self, batch, logs=None):\n    return {}\n", tmp_path / "edited.py"
    path.write_text(source.format("logs"))
    scope = {}
    exec(compile(source.format("batch.act()"), str(path), "exec"), scope)
    assert not only_notes(of_hook(scope["hook"]), [HOOK])


def locks(self, batch, logs=None):
    with self.lock:
        self.kept.append(batch)


def forgets(self, batch, logs=None):
    self.kept.append(logs)
    while len(self.kept) > 3:
        del self.kept[0]


def test_locks_and_long_lists_of_losses_are_data():
    callbacks = of_hook(locks), of_hook(forgets)
    for callback in callbacks:
        callback.kept, callback.lock = [np.float32(0.5)] * 300_000, threading.Lock()
        assert only_notes(callback, [HOOK])


# Functions that only compute.

OUTER, TABLE, DECAY = 0.5, [(2, 0.05), (4, 0.01)], keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
X, STEPS, COUNT, LEFT = np.ones(2), [2, 4], itertools.count(), iter((1, 2))


def helper(epoch):
    return OUTER**epoch


def by_table(epoch, rate):
    for first, value in TABLE:
        if epoch >= first:
            rate = value
    return rate


def by_steps(epoch, rate):
    factor = 1.0
    for first in STEPS:
        if epoch >= first:
            factor *= 0.5
    rate *= factor
    return rate


def added(epoch, rate, seen=[]):  # noqa: B006
    seen += [epoch]
    return rate / len(seen)


def added_by_helper(epoch, rate):
    return added(epoch, rate, STEPS)


def added_by_another_name(epoch, rate):
    for seen in (STEPS,):
        seen *= 2
    return rate / len(STEPS)


def counting(seen):
    def schedule(epoch, rate):
        seen.append(epoch)
        return rate * 0.7

    return schedule


def printing(epoch, rate):
    print(f"epoch {epoch}")
    return rate * 0.8


COMPUTING = {
    "arithmetic": lambda epoch, rate: rate * 0.9 if epoch > 2 else rate,
    "a number outside": lambda epoch, rate: rate * OUTER,
    "a function outside": lambda epoch, rate: rate * helper(epoch),
    "a table": by_table,
    "a table of NumPy": lambda epoch, rate: float(X[epoch]),
    "a table and NumPy": lambda epoch, rate: float(np.interp(epoch, STEPS, [0.1, 0.01])),
    "steps that multiply": by_steps,
    "NumPy": lambda epoch, rate: float(0.1 * np.cos(np.pi * epoch / 10)),
    "Keras": lambda epoch, rate: float(rate * keras.ops.exp(-0.1)),
    "a schedule of Keras": DECAY,
}
MORE_THAN_THAT = {
    "a method of a schedule of Keras": DECAY.__call__,
    "a list that it fills": counting([]),
    "a list of its own that it fills": added,
    "a list that it hands on to be filled": added_by_helper,
    "a list that it fills under another name": added_by_another_name,
    "a view that it fills": lambda epoch, rate: float(np.multiply(X[:1], 0.9, X[:1])[0]),
    "an array that it fills": lambda epoch, rate: np.copyto(X, rate) or rate,
    "a setting of NumPy": lambda epoch, rate: np.seterr(all="raise") and rate,
    "an iterator": lambda epoch, rate: rate if epoch in COUNT else rate / 2,
    "an iterator to add up": lambda epoch, rate: rate * sum(LEFT),
    "random numbers": lambda epoch, rate: rate * np.random.rand(),
    "an object's method": lambda epoch, rate: rate * X.mean(),
    "a builtin that prints": printing,
    "a part": partial(lambda scale, epoch, rate: rate * scale, 0.5),
    "a model": lambda epoch, rate: rate * len(MODEL.layers),
}


@pytest.mark.parametrize("name", {**COMPUTING, **MORE_THAN_THAT})
def test_whose_call_nobody_notices(name):
    assert only_computes({**COMPUTING, **MORE_THAN_THAT}[name]) == (name in COMPUTING)
