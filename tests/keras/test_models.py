"""What a model is: whose its methods are, its layers, and what its graph does."""

from __future__ import annotations

import functools
from unittest import mock

import keras
import pytest

from overlap_train._keras import models
from tests.networks import sequential, subclassed


def test_an_override_is_the_users_and_not_what_a_library_puts_into_keras_s_class(monkeypatch):
    class Middle(keras.Sequential):
        def fit(self, *arguments, **options):
            return super().fit(*arguments, **options)

    class Own(Middle):
        pass

    owners = {"fit": Middle, "evaluate": None, "no_such_method": None}
    assert {name: models.overriding_class(Own(), name) for name in owners} == owners
    assert models.overriding_class(sequential(), "fit") is None
    instance = sequential()
    instance.fit = lambda *arguments, **options: None
    assert models.overriding_class(instance, "fit") is type(instance)
    stock = models.KerasTrainer.fit
    monkeypatch.setattr(
        models.KerasTrainer, "fit", lambda *arguments, **options: stock(*arguments, **options)
    )
    assert models.overriding_class(sequential(), "fit") is None
    assert models.overriding_class(Own(), "fit") is Middle


@pytest.mark.parametrize("autospec", [False, True])
@pytest.mark.parametrize("name", ["fit", "evaluate", "make_test_function", "train_step"])
def test_what_a_mock_puts_into_keras_s_class_is_not_keras_s(name, autospec):
    """A mock with Keras's signature takes its module's name from it, too."""
    assert not models.is_replaced(sequential(), name)
    with mock.patch.object(keras.Model, name, autospec=autospec):
        assert models.is_replaced(sequential(), name)
        assert not models.is_stock_method(getattr(keras.Model, name))
    assert not models.is_replaced(sequential(), name)


def fake(module):
    return type("Fake", (), {"__module__": module})


STOCK = {
    "method": (lambda: sequential().train_step, True),
    "metric": (lambda: keras.metrics.Mean().update_state, True),
    "wrapped metric": (lambda: keras.metrics.MeanSquaredError().update_state, True),
    "function": (lambda: keras.losses.mean_squared_error, True),
    "class": (lambda: keras.Sequential, True),
    "trainer": (lambda: models.KerasTrainer, True),
    "own method": (lambda: subclassed().call, False),
    "own function": (lambda: lambda: None, False),
    "what wraps Keras's": (lambda: functools.wraps(keras.losses.mean_squared_error)(lambda *_: 0.0), False),
    "own class": (lambda: type("Own", (keras.Sequential,), {}), False),
    # Keras's tests are in its package, but are written as users write.
    "a test of Keras's": (lambda: fake("keras.src.trainers.trainer_test"), False),
    "another package": (lambda: fake("keras_hub.models"), False),
}


@pytest.mark.parametrize(("make", "stock"), STOCK.values(), ids=STOCK)
def test_what_is_keras_s_is_told_from_what_is_not(make, stock):
    """Methods and classes of Keras live in modules named keras...."""
    assert models.is_stock_method(make()) is stock
