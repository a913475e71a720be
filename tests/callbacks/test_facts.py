"""What a reading of callbacks has relied on, and what may become of that while they train."""

from __future__ import annotations

import builtins
import enum
import functools
import io
import logging
import sys
import types
import warnings

import keras
import pytest
import rich.console

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.facts import Fact
from overlap_train._callbacks.grounds import Grounds
from overlap_train._callbacks.hook_doings import read_hooks
from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._callbacks.late import late_callbacks
from overlap_train._inspection.lookup import MISSING

Callback = keras.callbacks.Callback


def act(callback, *_):
    callback.model.trainable = False


def acting(self, batch, logs=None):
    act(self)


def keeps(callback, batch, on=False):
    if on:
        act(callback)
    callback.seen = batch


def keeps_too(callback, batch, *, on=False):
    if on:
        act(callback)
    callback.seen = batch


class Helper:
    def __call__(self, callback, batch):
        callback.seen = batch


class Setting:
    pass


class Base(Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.seen = batch


class Middle(Base):
    pass


def copy_of(function):
    made = types.FunctionType(function.__code__, function.__globals__, argdefs=function.__defaults__)
    made.__kwdefaults__ = dict(function.__kwdefaults__ or {}) or None
    return made


def own():
    """Returns a callback of classes and functions that belong to it alone."""
    helper = type("OwnHelper", (Helper,), {})
    middle = type("OwnMiddle", (Middle,), {})

    class Own(middle):
        def __init__(self):
            super().__init__()
            self.function, self.other, self.helper = copy_of(keeps), copy_of(keeps_too), helper()
            self.partial = functools.partial(keeps, on=False)
            self.setting = type("OwnSetting", (Setting,), {})()
            self.setting.on = False

        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            import stood_in_for

            if self.setting.on or stood_in_for.level:
                act(self)
            self.function(self, batch)
            self.other(self, batch)
            self.helper(self, batch)
            self.partial(self, batch)
            self.size = round(batch)

    return Own()


def code(callback, patch):
    callback.function.__code__ = acting.__code__


def defaults(callback, patch):
    callback.function.__defaults__ = (True,)


def keyword_default(callback, patch):
    callback.other.__kwdefaults__["on"] = True


def code_of_the_hook(callback, patch):
    callback.other.__code__ = acting.__code__


def call_of_a_class(callback, patch):
    type(callback.helper).__call__ = acting


def keyword_of_a_partial(callback, patch):
    callback.partial.keywords["on"] = True


def class_between(callback, patch):
    type(callback).__mro__[1].on_train_batch_end = acting


def property_of_a_class(callback, patch):
    type(callback.setting).on = property(lambda self: True)


def special_method(callback, patch):
    type(callback.setting).__getattribute__ = lambda self, name: True


def setter(callback, patch):
    type(callback).seen = property(lambda self: 1, acting)


def module(callback, patch):
    patch.setitem(sys.modules, "stood_in_for", types.SimpleNamespace(level=1))


def global_for_a_builtin(callback, patch):
    patch.setitem(globals(), "round", lambda batch: act(callback))


def builtin(callback, patch):
    patch.setattr(builtins, "round", lambda batch: act(callback))


WAYS = (
    code,
    defaults,
    keyword_default,
    code_of_the_hook,
    call_of_a_class,
    keyword_of_a_partial,
    class_between,
)
WAYS += (property_of_a_class, special_method, setter, module, global_for_a_builtin, builtin)


@pytest.fixture(autouse=True)
def stood_in_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "stood_in_for", types.SimpleNamespace(level=0))


def changes(grounds):
    """Whether grounds have changed; they may be what only a part of them was."""
    return grounds.changed() is not None


@pytest.mark.parametrize("change", WAYS)
def test_what_a_reading_relied_on_is_looked_at_again(change):
    callback = own()
    grounds = Grounds(keras.callbacks.CallbackList([callback]))
    assert not changes(grounds)
    with pytest.MonkeyPatch.context() as patch:
        change(callback, patch)
        changed = changes(grounds)
    assert changed


class Prints(Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(batch)


class Warns(Callback):
    def on_train_batch_end(self, batch, logs=None):
        warnings.warn("so it is", stacklevel=2)


class Logs(Callback):
    def on_train_batch_end(self, batch, logs=None):
        logging.getLogger("somebody").info("batch %d", batch)


class LogsToOwn(Callback):
    logger = logging.getLogger("tests.facts")

    def on_train_batch_end(self, batch, logs=None):
        self.logger.info("batch %d", batch)


class Draws(Callback):
    def __init__(self):
        super().__init__()
        self.console = rich.console.Console(file=io.StringIO())

    def on_train_batch_end(self, batch, logs=None):
        self.console.print(batch)


MODEL = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


class ActingStream:
    def write(self, text):
        MODEL.trainable = False

    def flush(self): ...


class KeepingStream(ActingStream):
    def __init__(self):
        self.lines = []

    def write(self, text):
        self.lines.append(text)


class ActingHandler(logging.Handler):
    def emit(self, record):
        MODEL.trainable = False


@pytest.fixture
def handler():
    made = ActingHandler()
    yield made
    logging.root.removeHandler(made)
    LogsToOwn.logger.removeHandler(made)


def is_late(callback):
    return callback in late_callbacks(keras.callbacks.CallbackList([callback]), watched=False)


def replaced_stdout(callback, patch, handler):
    patch.setattr(sys, "stdout", ActingStream())


def replaced_warning(callback, patch, handler):
    patch.setattr(warnings, "showwarning", lambda *_: act(callback))


def replaced_stderr(callback, patch, handler):
    patch.setattr(sys, "stderr", ActingStream())


def handler_of_root(callback, patch, handler):
    logging.root.addHandler(handler)


def handler_of_own(callback, patch, handler):
    callback.logger.addHandler(handler)


def file_of_console(callback, patch, handler):
    callback.console.file = ActingStream()


OUTLETS = {
    "stdout": (Prints, replaced_stdout),
    "warning": (Warns, replaced_warning),
    "stderr": (Warns, replaced_stderr),
    "root": (Logs, handler_of_root),
    "stderr of loggers": (Logs, replaced_stderr),
    "logger": (LogsToOwn, handler_of_own),
    "library": (Draws, file_of_console),
}


@pytest.mark.parametrize(("kind", "change"), OUTLETS.values(), ids=OUTLETS)
def test_text_is_followed_to_where_it_is_written(kind, change, handler):
    callback = kind()
    assert is_late(callback)
    grounds = Grounds(keras.callbacks.CallbackList([callback]))
    assert not changes(grounds)
    with pytest.MonkeyPatch.context() as patch:
        change(callback, patch, handler)
        assert changes(grounds)
        assert read_hooks(callback, ["on_train_batch_end"]).doing is Doing.ANYTHING
        assert not is_late(callback)


def test_a_stream_of_the_user_s_that_keeps_text_is_no_obstacle(monkeypatch):
    monkeypatch.setattr(sys, "stdout", KeepingStream())
    assert is_late(Prints())


def test_a_member_of_an_enumeration_is_a_number():
    class Level(enum.IntEnum):
        LOW = 1

    class Asks(Callback):
        def __init__(self):
            super().__init__()
            self.level, self.kept = Level.LOW, []

        def on_train_batch_end(self, batch, logs=None):
            if batch % 2 == self.level:
                self.kept.append(batch)

    assert is_late(Asks())


def test_hooks_that_a_class_makes_up_are_called():
    class MakesUp(Callback):
        def __getattribute__(self, name):
            return print if name == "on_train_batch_end" else super().__getattribute__(name)

    assert wants_train_batches(MakesUp())


def test_what_was_missing_is_a_fact_until_it_is_there():
    thing = types.SimpleNamespace()
    fact = Fact(thing, "on", MISSING)
    assert fact.holds()
    thing.on = True
    assert not fact.holds()
