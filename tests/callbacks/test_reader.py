"""Hooks that change the training along a way that is easily overlooked, each in a dozen other dresses."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import io
import json
import logging
import operator
import types
import weakref

import keras
import numpy as np
import pytest

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.hook_doings import read_hooks
from overlap_train._callbacks.hooks import may_change_training, wants_train_batches
from overlap_train._callbacks.late import late_callbacks

Callback = keras.callbacks.Callback
MODEL = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
DEEP = [[[[MODEL]]]]
HOSTILE: dict[str, object] = {}


def act(*_, **__):
    MODEL.trainable = False


def hostile(hook):
    HOSTILE[hook.__name__] = hook
    return hook


def late(callback, *others):
    return callback in late_callbacks(keras.callbacks.CallbackList([callback, *others]), watched=False)


class Thing:
    """Acts when it is asked for a property or a sign."""

    def act(self, *_):
        act()
        return 1

    shown = property(act)
    __neg__ = __invert__ = __pos__ = act


class Made:
    def __init__(self, *_):
        act()


class ActsWhenMade(Exception):
    def __init__(self, *_):
        act()


class Asked(type):
    def __instancecheck__(cls, thing):
        return bool(act())

    __subclasscheck__ = __instancecheck__


class AskedKind(metaclass=Asked):
    pass


class Encoder(json.JSONEncoder):
    def default(self, o):
        return act()


class Handler(logging.Handler):
    def emit(self, record):
        act()


class Raw(io.RawIOBase):
    def write(self, data):
        act()
        return len(data)

    def writable(self):
        return True


@dataclasses.dataclass(slots=True)
class Slotted:
    every: object = None


def applied(function):
    act()
    return function


VECTORIZED = np.vectorize(act)
UFUNC = np.frompyfunc(act, 1, 1)
LOGGER = logging.getLogger("hostile")
LOGGER.addHandler(Handler())
LOGGER.propagate = False


# At a definition.


@hostile
def a_decorator_is_called(self, batch, logs=None):
    @applied
    def inner(): ...


@hostile
def a_default_is_computed(self, batch, logs=None):
    def inner(x=act()): ...  # noqa: B008


@hostile
def a_keyword_s_default_is_computed(self, batch, logs=None):
    def inner(*, x=act()): ...


@hostile
def a_lambda_s_default_is_computed(self, batch, logs=None):
    self.kept.append(0 if (lambda x=act(): 0) else 1)  # noqa: B008


# Along an exception.


@hostile
def a_missing_key_is_handled(self, batch, logs=None):
    try:
        logs["missing"]
    except KeyError:
        act()


@hostile
def a_division_is_handled(self, batch, logs=None):
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        self.model.optimizer.learning_rate.assign(0.0)


@hostile
def a_handler_sees_what_was_set_before_the_error(self, batch, logs=None):
    held = logs
    try:
        held = self.model
        print(batch)
        held = None
    except ValueError:
        held.trainable = False


@hostile
def finally_sees_it_too(self, batch, logs=None):
    held = logs
    try:
        held = self.model
        print(batch)
        held = logs
    finally:
        held.trainable = False


@hostile
def a_way_out_of_a_loop_passes_finally(self, batch, logs=None):
    held = logs
    for _ in range(2):
        try:
            break
        finally:
            held = self.model
    held.trainable = False


@hostile
def the_kind_of_error_is_computed(self, batch, logs=None):
    try:
        print(batch)
    except self.act():
        pass


@hostile
def a_cause_is_computed(self, batch, logs=None):
    raise ValueError from act()


@hostile
def an_assertion_s_text_is_computed(self, batch, logs=None):
    assert batch < 0, act()


@hostile
def an_error_s_class_acts(self, batch, logs=None):
    self.error = ActsWhenMade("x")


@hostile
def a_context_hides_the_error(self, batch, logs=None):
    with contextlib.suppress(KeyError):
        self.kept.append(logs["missing"])
        return
    act()


# In an expression.


@hostile
def a_condition_may_set_a_variable(self, batch, logs=None):
    held = self.act
    batch and (held := None)
    if held is not None:
        held()


@hostile
def either_way_may_set_it(self, batch, logs=None):
    self.kept.append(1) if (held := self.act) is batch else (held := None)
    if held is not None:
        held()


@hostile
def a_chain_of_comparisons_ends_early(self, batch, logs=None):
    held = None
    1 < 0 < (held := 3)  # noqa: B015
    if held is None:
        act()


@hostile
def a_comprehension_sets_a_variable(self, batch, logs=None):
    held = logs
    self.kept += [0 for _ in (1,) if (held := self.model)]
    held.trainable = False


@hostile
def a_place_is_computed(self, batch, logs=None):
    self.kept[act()] = 1


@hostile
def a_sign_is_asked_for(self, batch, logs=None):
    self.kept.append(-self.thing)


@hostile
def the_owner_of_an_annotation_is_computed(self, batch, logs=None):
    self.thing.act().x: int


@hostile
def a_property_is_looked_for(self, batch, logs=None):
    self.kept.append(hasattr(self.thing, "shown"))


@hostile
def a_slot_is_no_setting_of_the_class(self, batch, logs=None):
    if self.slotted.every is not None:
        return
    act()


@hostile
def a_loop_carries_the_model_turn_by_turn(self, batch, logs=None):
    a = b = c = d = logs
    while batch < 9:
        if a is not logs:
            a.trainable = False
        a, b, c, d = b, c, d, self.model
        batch += 1


# Handed on to others.


@hostile
def a_class_is_a_key(self, batch, logs=None):
    self.kept.append(sorted([2, 1], key=Made))


@hostile
def a_class_is_an_encoder(self, batch, logs=None):
    self.kept.append(json.dumps(batch, cls=Encoder))


@hostile
def a_metaclass_is_asked(self, batch, logs=None):
    self.kept.append(isinstance(batch, AskedKind))


@hostile
def numpy_calls_a_function(self, batch, logs=None):
    self.kept.append(VECTORIZED([batch]))


@hostile
def numpy_has_made_an_operation_of_it(self, batch, logs=None):
    self.kept.append(UFUNC(batch))


@hostile
def a_logger_has_a_handler(self, batch, logs=None):
    LOGGER.warning("batch %s", batch)


@hostile
def a_file_writes_to_an_object(self, batch, logs=None):
    self.file.write(b"x")


@hostile
def a_missing_key_is_made(self, batch, logs=None):
    self.kept.append(self.making[batch])


@hostile
def the_class_of_the_model_is_changed(self, batch, logs=None):
    self.model.__class__.train_step = batch


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
    import threading

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
