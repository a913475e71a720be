"""What a model is: whose its methods are, its layers, and what its graph does."""

import functools
from unittest import mock

import keras
import pytest

from overlap_train._keras import models
from tests.networks import sequential, subclassed


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
