"""What is refused as data is what Keras refuses, and the message says what to pass instead."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer
from overlap_train._keras.data_mistakes import refuse_plain_values
from tests.networks import arrays
from tests.pools import sequential

X, Y = arrays(12)
TEXT = np.array(["cat", "dog", "cow"] * 4)

REFUSED = [
    ((X, TEXT), r"^y of the training data holds text; turn labels into numbers, as by numpy.unique"),
    ((X, TEXT.astype(bytes)), "^y of the training data holds text"),
    ((X, list(TEXT.tolist())), "^y of the training data holds text"),
    ((X.tolist(), Y), r"^x of the training data is a list of numbers, .* pass numpy.asarray\(x\)"),
    ((X, Y.tolist()), r"^y of the training data is a list of numbers, .* pass numpy.asarray\(y\)"),
    (({"a": X, "b": TEXT}, Y), "^x of the training data holds text"),
    ((X, Y, [1.0] * 12), "^sample_weight of the training data is a list of numbers"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED)
def test_plain_values_are_refused_and_keras_refuses_them_too(data, message):
    weight = {"sample_weight": data[2]} if len(data) > 2 else {}
    with pytest.raises(ValueError, match=message):
        Trainer(sequential()).fit(*data[:2], **weight, verbose=0)
    with pytest.raises(ValueError):
        sequential().fit(*data[:2], **weight, verbose=0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.array(1.0), Y), "x of the training data is a single number, without rows"),
        ((X, tf.constant(2)), "y of the training data is a single number"),
        (([X, np.float32(3)], Y), "x of the training data is a single number"),
        (([], []), "there is no training data: x holds no array; pass at least one"),
        (({}, None), "there is no training data: x holds no array"),
        (([None, None], [None]), "there is no training data: x holds no array"),
    ],
)
@pytest.mark.parametrize("split", [0.0, 0.5])
def test_what_has_no_rows_is_refused_where_keras_fails(data, message, split):
    with pytest.raises(ValueError, match=message):
        Trainer(sequential()).fit(*data, validation_split=split, verbose=0)
    with pytest.raises((LookupError, ValueError, AttributeError, tf.errors.OpError)):
        sequential().fit(*data, validation_split=split, verbose=0)


def test_validation_data_and_what_is_split_off_are_looked_at_too():
    with pytest.raises(ValueError, match=r"^y of the validation data holds text"):
        Trainer(sequential()).fit(X, Y, validation_data=(X, TEXT), verbose=0)
    with pytest.raises(ValueError, match=r"^y of the training data is a list"):
        Trainer(sequential()).fit(X, Y.tolist(), validation_split=0.5, verbose=0)
    with pytest.raises(ValueError, match=r"^y of the validation data holds text"):
        Trainer(sequential()).evaluate(X, TEXT, verbose=0)


@pytest.mark.parametrize(
    "x",
    [
        X,
        TEXT.astype(object),
        [X, X],
        {"a": X, "b": [X, X]},
        tf.constant(TEXT),
        tf.data.Dataset.from_tensor_slices(TEXT),
        "a path",
        ([], X),
        np.zeros((3, 2), "float16"),
        [keras.ops.ones((3, 2))],
    ],
)
def test_what_keras_may_take_is_left_to_it(x):
    refuse_plain_values(x, None, None, role="training")
