"""Callbacks in a list that is Keras's own, and the line that an evaluation prints."""

import contextlib
import io
import re

import keras
import pytest

from overlap_train import Trainer
from tests.networks import arrays, linear
from tests.pools import sequential
from tests.whole_fits.comparing import Rows, slices
from tests.whole_fits.test_own_methods import OwnTestFunction

X, Y = arrays(48)
ROWS = slices(X, Y)


def last_line(evaluate, *data, **asked):
    """Returns what is read on a terminal at the end, with the times left out."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        evaluate(*data, **asked)
    line = printed.getvalue().replace("\b", "").split("\r")[-1]
    return re.sub(r"\x1b\[\d+m|\d+(us|ms|s)\b", "", line).rstrip()


class Params(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        self.told = dict(self.params)


DATA = {
    "arrays": (X, Y),
    "dataset": (ROWS.batch(8),),
    "unknown length": (ROWS.filter(lambda x, y: x[0] > -5).batch(8),),
    "PyDataset": (Rows(X[:24], Y[:24]),),
    "no batch": (ROWS.batch(8).take(0),),
}


@pytest.mark.by_default("dataset", "unknown length")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_an_evaluation_ends_with_the_line_of_keras(data):
    model = sequential()
    for asked in ({"verbose": 1}, {"verbose": 2}, {"verbose": 0}, {}, {"steps": 2}, {"steps": 9}):
        told = [Params(), Params()]
        expected = last_line(model.evaluate, *data, callbacks=told[:1], **asked)
        assert last_line(Trainer(model).evaluate, *data, callbacks=told[1:], **asked) == expected
        assert told[1].told == told[0].told


MODELS = {
    "groups": lambda: linear(steps_per_execution=4, metrics=["accuracy"]),
    "step by step": lambda: linear(run_eagerly=True, metrics=["accuracy"]),
    "own test function": lambda: linear(kind=OwnTestFunction),
}


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
@pytest.mark.by_default("step by step-None", "own test function-None", "own test function-4")
def test_so_it_does_in_groups_step_by_step_and_by_a_function_of_the_models_own(build, steps):
    model = build()
    for verbose in (1, 2):
        asked = dict(verbose=verbose, batch_size=8, steps=steps)
        expected = last_line(model.evaluate, X, Y, **asked)
        assert last_line(Trainer(model).evaluate, X, Y, **asked) == expected != ""


def test_where_keras_adds_no_bar_nothing_is_printed(capsys):
    model = sequential()
    Trainer(model).evaluate(X, Y, callbacks=keras.callbacks.CallbackList([], model=model))
    Trainer(model).fit(X, Y, verbose=0, validation_data=(X, Y))
    assert capsys.readouterr().out == ""
    bar = keras.callbacks.ProgbarLogger()
    assert last_line(Trainer(model).evaluate, X, Y, callbacks=bar).count("loss") == 1


def of_another_class():
    return type("Mine", (keras.callbacks.CallbackList,), {})([])


def with_a_hook_of_its_own():
    listed = keras.callbacks.CallbackList([])
    listed.on_epoch_end = lambda epoch, logs=None: None
    return listed


@pytest.mark.parametrize("make_list", [of_another_class, with_a_hook_of_its_own])
def test_a_list_that_may_run_other_code_than_keras_s_is_refused(make_list):
    for call in (Trainer(sequential()).fit, Trainer(sequential()).evaluate):
        with pytest.raises(TypeError, match="by a CallbackList that is not Keras's own; pass them in a list"):
            call(*arrays(8), callbacks=make_list(), verbose=0)


def test_so_are_all_callbacks_while_the_class_of_their_list_is_replaced(monkeypatch):
    monkeypatch.setattr(keras.callbacks.CallbackList, "on_epoch_end", lambda self, epoch, logs=None: None)
    with pytest.raises(TypeError, match="that is not Keras's own"):
        Trainer(sequential()).fit(*arrays(8), verbose=0)


def test_a_list_that_is_given_a_hook_while_it_trains_is_refused_then():
    class Sets(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            listed.on_epoch_begin = lambda epoch, logs=None: None

    model = sequential()
    listed = keras.callbacks.CallbackList([Sets()], add_history=True, model=model)
    with pytest.raises(TypeError, match="that is not Keras's own"):
        Trainer(model).fit(*arrays(8), epochs=3, callbacks=listed, verbose=0)
