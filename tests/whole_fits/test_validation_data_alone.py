"""`validation_data` may be x alone, in every form, whose truth nobody may ask for."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import EvaluationFunction
from overlap_train.options.functions import split_functions
from tests.pools import pooled
from tests.whole_fits.comparing import assert_as_keras

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


class WithoutTruth:
    """Data of which nobody may ask whether it is true, as of an array."""

    def __bool__(self):
        raise ValueError("the truth value is ambiguous")


def test_functions_are_told_from_data_without_asking_whether_it_is_true():
    data, function = WithoutTruth(), EvaluationFunction(lambda model: 1.0)
    for given, expected in (
        (data, (data, {})),
        ({"a": data}, ({"a": data}, {})),
        ({"f": function}, (None, {"f": function})),
        ({}, ({}, {})),
    ):
        assert split_functions(given, None, lambda value: isinstance(value, tuple)) == expected


class Errors(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(4)

    def call(self, x):
        x = x["a"] if isinstance(x, dict) else x
        outputs = self.head(x)
        self.add_loss(keras.ops.mean((x - outputs) ** 2))
        return outputs


@pooled
def unsupervised():
    keras.utils.set_random_seed(0)
    model = Errors()
    model(X)
    model.compile("sgd")
    return model


DATA = {
    "array": X,
    "one row": X[:1],
    "doubles": X.astype("float64"),
    "tensor": tf.constant(X),
    "variable": tf.Variable(X),
    "a tuple of one": (X,),
    "inputs by name": {"a": X},
}


@pytest.mark.by_default("inputs by name")
@pytest.mark.parametrize("name", DATA)
def test_validation_data_may_be_x_alone(name):
    data = DATA[name]
    x = data if isinstance(data, dict) else X
    assert_as_keras(
        lambda trained: trained.fit(x, epochs=2, verbose=0, validation_data=data), build=unsupervised
    )
