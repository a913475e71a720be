"""Methods of Keras's own class that somebody has replaced: Keras calls what is there, and so do we."""

from __future__ import annotations

import functools
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy, ValidationSet
from tests.networks import CLASSES, arrays, assert_same_history, crossentropy, sequential

X, Y = arrays(48)
VALIDATION = arrays(24, 1)
ASKED = dict(batch_size=8, epochs=2, verbose=0, shuffle=False, validation_data=VALIDATION)
AHEAD = ValidationPolicy(max_lag=2, overlap="always")


def logged(calls):
    """Returns an `evaluate` around Keras's, which looks like it."""
    original = keras.Model.evaluate

    @functools.wraps(original)
    def evaluate(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        calls.append(result)
        return {**result, "loss": result["loss"] + 100.0}

    return mock.patch.object(keras.Model, "evaluate", evaluate)


def in_a_subclass_of_keras_s(calls):
    def evaluate(self, *args, **kwargs):
        calls.append(kwargs["batch_size"])
        return keras.Model.evaluate(self, *args, **kwargs)

    return mock.patch.object(keras.Sequential, "evaluate", evaluate, create=True)


def mocked(calls):
    def count(*args, **kwargs):
        calls.append(kwargs["return_dict"])
        return {"loss": 5.0}

    return mock.patch.object(keras.Model, "evaluate", side_effect=count)


def mocked_with_its_signature(calls):
    def count(self, *args, **kwargs):
        calls.append(kwargs["return_dict"])
        return {"loss": 6.0}

    return mock.patch.object(keras.Model, "evaluate", autospec=True, side_effect=count)


REPLACED = [logged, in_a_subclass_of_keras_s, mocked, mocked_with_its_signature]


@pytest.mark.nightly
@pytest.mark.parametrize("replaced", REPLACED)
@pytest.mark.by_default("mocked")
def test_an_evaluate_in_the_place_of_keras_s_validates(replaced):
    histories, called = [], []
    for ours in (False, True):
        model, calls = sequential(), []
        trainer = Trainer(model, validation=AHEAD)
        with replaced(calls):
            histories.append((trainer.fit if ours else model.fit)(X, Y, **ASKED).history)
        called.append(len(calls))
    assert_same_history(histories[1], histories[0])
    assert called == [2, 2]
    assert any("#model-evaluates" in message for message in trainer.messages)


@pytest.mark.nightly
def test_each_of_several_sets_is_given_to_it():
    calls, sets = [], {"a": VALIDATION, "b": ValidationSet(data=VALIDATION, freq=2)}
    with logged(calls):
        history = Trainer(sequential()).fit(X, Y, **(ASKED | {"validation_data": sets})).history
    assert len(calls) == 3
    assert [len(history[f"val_{name}_loss"]) for name in sets] == [2, 1]
    assert min(history["val_a_loss"]) > 100


def nested(logs):
    return {"base": logs, "of": {"each": {"class": tf.constant([1.0, 2.0]), "twice": 2 * logs["loss"]}}}


def beside(logs):
    return {**logs, "f1": {"macro": 0.25, "per": np.arange(3.0)}}


def numbered(logs):
    return {0: logs["loss"], "shape": tf.constant([1, 2])}


def model_that_returns(change):
    """Returns a network whose class has an `evaluate` that changes what Keras's returns."""

    class Own(keras.Sequential):
        def evaluate(self, *args, **kwargs):
            return change(super().evaluate(*args, **kwargs))

    model = Own([keras.Input((X.shape[1],)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), metrics=["accuracy"])
    return model


@pytest.mark.nightly
@pytest.mark.by_default("nested")
@pytest.mark.parametrize("change", [nested, beside, numbered, lambda logs: {}])
def test_the_structure_of_what_it_returns_is_that_of_keras_s_logs(change):
    histories, seen = [], []
    for ours in (False, True):
        keras.utils.set_random_seed(3)
        model, logs = model_that_returns(change), []
        keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, given, logs=logs: logs.append(given))
        fit = Trainer(model, validation=AHEAD).fit if ours else model.fit
        histories.append(fit(X, Y, callbacks=[keep], **ASKED).history)
        seen.append(logs)
    assert_same_history(histories[1], histories[0])
    for actual, expected in zip(*reversed(seen), strict=True):
        assert_same_history(actual, expected)


def test_a_set_with_a_name_keeps_it_in_front_of_what_is_inside():
    sets = {"a": VALIDATION, "b": VALIDATION}
    history = Trainer(model_that_returns(beside)).fit(X, Y, **(ASKED | {"validation_data": sets})).history
    assert "macro" not in history
    assert history["val_a_macro"] == history["val_b_macro"] == [0.25, 0.25]


@pytest.mark.by_default("<lambda>1")
@pytest.mark.parametrize("change", [lambda logs: None, lambda logs: list(logs.values())])
def test_what_is_no_dict_is_the_error_of_keras(change):
    for fit in (model_that_returns(change).fit, Trainer(model_that_returns(change)).fit):
        with pytest.raises(AttributeError, match="has no attribute 'items'"):
            fit(X, Y, **ASKED)


def test_it_is_called_around_an_evaluation_too():
    calls, model = [], sequential()
    expected = model.evaluate(*VALIDATION, verbose=0, return_dict=True)
    with logged(calls):
        found = Trainer(model).evaluate(*VALIDATION, verbose=0, return_dict=True)
    assert len(calls) == 1
    assert found["loss"] == pytest.approx(expected["loss"] + 100, rel=1e-5)


def own_test_function(model, force=False):
    original, before = type(model).stock(model, force), model.test_function
    if not hasattr(before, "own"):
        model.test_function = lambda iterator: {**before(iterator), "own": 7.0}
        model.test_function.own = True
    return original


@pytest.mark.nightly
def test_a_make_test_function_in_the_place_of_keras_s_makes_what_validates():
    histories = []
    for ours in (False, True):
        model = sequential()
        stock = mock.patch.object(keras.Model, "stock", keras.Model.make_test_function, create=True)
        with stock, mock.patch.object(keras.Model, "make_test_function", own_test_function):
            fit = Trainer(model, validation=AHEAD).fit if ours else model.fit
            histories.append(fit(X, Y, **ASKED).history)
    assert_same_history(histories[1], histories[0])
    assert histories[1]["val_own"] == [7.0, 7.0]
