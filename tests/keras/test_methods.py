"""Whose code a method is."""

from __future__ import annotations

import functools
from unittest import mock

import keras
import pytest

from overlap_train._keras import models as keras_models
from tests.networks import arrays, sequential, subclassed

X, Y = arrays(20)


def test_own_methods_are_told_from_keras_s():
    """Methods of Keras live in modules named keras...."""
    assert keras_models.is_stock_method(sequential().train_step)
    assert keras_models.is_stock_method(keras.metrics.Mean().update_state)
    assert keras_models.is_stock_method(keras.metrics.MeanSquaredError().update_state)
    assert not keras_models.is_stock_method(subclassed().call)
    assert not keras_models.is_stock_method(lambda: None)


def test_the_code_of_a_method_is_found_behind_its_decorators():
    """The closure of `filter_traceback`, in which Keras's own lies."""

    def decorated(function):
        def around(self, *arguments):
            return function(self, *arguments)

        return around

    def fit(self):
        return helper(self)

    def helper(model): ...

    class Own(keras.Sequential):
        pass

    Own.fit = decorated(fit)
    codes = keras_models.codes_of(Own(), "fit")
    assert {fit.__code__, Own.fit.__code__} < codes
    assert helper.__code__ not in codes
    assert [code.co_filename for code in codes if "/keras/" in code.co_filename]


def test_an_override_is_the_users_and_not_what_a_library_puts_into_keras_s_class(monkeypatch):
    class Middle(keras.Sequential):
        def fit(self, *arguments, **options):
            return super().fit(*arguments, **options)

    class Own(Middle):
        pass

    assert keras_models.overriding_class(Own(), "fit") is Middle
    assert keras_models.overriding_class(Own(), "evaluate") is None
    assert keras_models.overriding_class(Own(), "no_such_method") is None
    assert keras_models.overriding_class(sequential(), "fit") is None
    instance = sequential()
    instance.fit = lambda *arguments, **options: None
    assert keras_models.overriding_class(instance, "fit") is type(instance)
    stock = keras_models.KerasTrainer.fit
    monkeypatch.setattr(
        keras_models.KerasTrainer, "fit", lambda *arguments, **options: stock(*arguments, **options)
    )
    assert keras_models.overriding_class(sequential(), "fit") is None
    assert keras_models.overriding_class(Own(), "fit") is Middle


@pytest.mark.parametrize("autospec", [False, True])
@pytest.mark.parametrize("name", ["fit", "evaluate", "make_test_function", "train_step"])
def test_what_a_mock_puts_into_keras_s_class_is_not_keras_s(name, autospec):
    """A mock with Keras's signature takes its module's name from it, too."""
    assert not keras_models.is_replaced(sequential(), name)
    with mock.patch.object(keras.Model, name, autospec=autospec):
        assert keras_models.is_replaced(sequential(), name)
        assert not keras_models.is_stock_method(getattr(keras.Model, name))
    assert not keras_models.is_replaced(sequential(), name)


def test_classes_of_keras_s_are_told_from_those_of_its_own_tests():
    """A class's module: Keras's tests are in its package, but are written as users write."""
    assert keras_models.is_stock_method(keras.Sequential)
    assert keras_models.is_stock_method(keras_models.KerasTrainer)
    assert not keras_models.is_stock_method(type("Own", (keras.Sequential,), {}))
    assert not keras_models.is_stock_method(
        type("Fake", (), {"__module__": "keras.src.trainers.trainer_test"})
    )
    assert not keras_models.is_stock_method(type("Fake", (), {"__module__": "keras_hub.models"}))


def test_what_wraps_a_stock_function_is_not_one():
    @functools.wraps(keras.losses.mean_squared_error)
    def own(y, y_pred):
        return y_pred

    assert keras_models.is_stock_method(keras.losses.mean_squared_error)
    assert not keras_models.is_stock_method(own)


@pytest.mark.parametrize("name", ["fit", "evaluate"])
def test_the_cell_of_a_method_holds_what_it_runs(name):
    cell = keras_models.method_cell(name)
    before = cell.cell_contents
    try:
        cell.cell_contents = lambda self, *args, **kwargs: "exchanged"
        assert getattr(sequential(), name)(X, Y) == "exchanged"
    finally:
        cell.cell_contents = before
    assert keras_models.patched_by(sequential(), name) is None
