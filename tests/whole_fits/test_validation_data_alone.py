"""What `fit` takes as `validation_data` next to evaluation functions, whatever the truth of the data is."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import EvaluationFunction, Trainer
from overlap_train.options.functions import split_functions
from tests.networks import assert_same_history
from tests.pools import pooled

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


class WithoutTruth:
    """Data of which nobody may ask whether it is true, as of an array."""

    def __bool__(self):
        raise ValueError("the truth value is ambiguous")


def split(data, functions=None):
    return split_functions(data, functions, lambda value: isinstance(value, tuple))


def test_no_data_is_asked_whether_it_is_true():
    data = WithoutTruth()
    assert split(data) == (data, {})
    assert split({"a": data})[0] == {"a": data}


def test_a_dict_of_functions_alone_leaves_no_data():
    function = EvaluationFunction(lambda model: 1.0)
    assert split({"f": function}) == (None, {"f": function})
    assert split({}) == ({}, {})


def unsupervised():
    keras.utils.set_random_seed(0)

    class Errors(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = keras.layers.Dense(4)

        def call(self, x):
            x = x["a"] if isinstance(x, dict) else x
            outputs = self.head(x)
            self.add_loss(keras.ops.mean((x - outputs) ** 2))
            return outputs

    model = Errors()
    model(X)
    model.compile("sgd")
    return model


_POOLED = pooled(unsupervised)
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
    expected = _POOLED()
    data = DATA[name]
    x = data if isinstance(data, dict) else X
    expected.fit(x, epochs=2, verbose=0, validation_data=data)
    model = _POOLED()
    Trainer(model).fit(x, epochs=2, verbose=0, validation_data=data)
    assert_same_history(model.history.history, expected.history.history)
