"""Fixtures of the tests of callbacks."""

import keras
import pytest


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.5), "mse")
    return made
