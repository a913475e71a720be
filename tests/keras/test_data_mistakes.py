"""Mistakes in data are refused or noted with what to pass instead."""

from __future__ import annotations

import sys
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._keras.data import refuse_plain_values
from tests.networks import arrays, sequential
from tests.pools import sequential as pooled_sequential

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
        Trainer(pooled_sequential()).fit(*data[:2], **weight, verbose=0)
    with pytest.raises(ValueError):
        pooled_sequential().fit(*data[:2], **weight, verbose=0)


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
        Trainer(pooled_sequential()).fit(*data, validation_split=split, verbose=0)
    with pytest.raises((LookupError, ValueError, AttributeError, tf.errors.OpError)):
        pooled_sequential().fit(*data, validation_split=split, verbose=0)


def test_validation_data_and_what_is_split_off_are_looked_at_too():
    with pytest.raises(ValueError, match=r"^y of the validation data holds text"):
        Trainer(pooled_sequential()).fit(X, Y, validation_data=(X, TEXT), verbose=0)
    with pytest.raises(ValueError, match=r"^y of the training data is a list"):
        Trainer(pooled_sequential()).fit(X, Y.tolist(), validation_split=0.5, verbose=0)
    with pytest.raises(ValueError, match=r"^y of the validation data holds text"):
        Trainer(pooled_sequential()).evaluate(X, TEXT, verbose=0)


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


ROWS, LABELS = arrays(40)
NO_TARGETS = (
    "The {} data has no targets, and the model is compiled with a loss: pass y, or a dataset of (x, y)."
)
SINGLE_ROWS = (
    "The {} data gives single rows, of shape {}, where a batch of rows belongs: pass dataset.batch(32)."
)
needs_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes yet")


def rows(*parts):
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])


def raised_by(call):
    with pytest.raises(Exception) as info:
        call()
    return info.value


def notes_of(error):
    return getattr(error, "__notes__", [])


@needs_notes
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("data", "note"),
    [
        ((ROWS,), NO_TARGETS.format("training")),
        ((rows(ROWS).batch(8),), NO_TARGETS.format("training")),
        ((rows(ROWS, LABELS),), SINGLE_ROWS.format("training", ROWS.shape[1:])),
        ((rows(ROWS),), SINGLE_ROWS.format("training", ROWS.shape[1:])),
    ],
)
def test_the_error_is_that_of_keras_and_the_note_says_what_the_data_lacks(data, note, eager):
    def model():
        network = sequential()
        network.compile("sgd", network.loss, run_eagerly=eager)
        return network

    expected = raised_by(lambda: model().fit(*data, verbose=0))
    actual = raised_by(lambda: Trainer(model()).fit(*data, verbose=0))
    assert type(actual) is type(expected)
    assert str(actual).splitlines()[0] == str(expected).splitlines()[0]
    assert notes_of(actual) == [note]
    assert note in "".join(traceback.format_exception(actual))


@pytest.mark.by_default("data0-note0-always")
@needs_notes
@pytest.mark.parametrize("overlap", ["auto", "always"])
@pytest.mark.parametrize(
    ("data", "note"),
    [
        ((ROWS,), NO_TARGETS.format("validation")),
        (rows(ROWS).batch(8), NO_TARGETS.format("validation")),
        (rows(ROWS, LABELS), SINGLE_ROWS.format("validation", ROWS.shape[1:])),
    ],
)
def test_so_it_is_of_validation_data(data, note, overlap):
    trainer = Trainer(sequential(), validation=ValidationPolicy(overlap=overlap))
    assert notes_of(raised_by(lambda: trainer.fit(ROWS, LABELS, verbose=0, validation_data=data))) == [note]
    arguments = data if isinstance(data, tuple) else (data,)
    assert notes_of(raised_by(lambda: trainer.evaluate(*arguments, verbose=0))) == [note]


@needs_notes
def test_each_input_of_several_is_named():
    inputs = [keras.Input((3,)), keras.Input((2, 2))]
    flat = keras.layers.Concatenate()([inputs[0], keras.layers.Flatten()(inputs[1])])
    model = keras.Model(inputs, keras.layers.Dense(1)(flat))
    model.compile("sgd", "mse")
    data = rows((np.zeros((8, 3), "float32"), np.zeros((8, 2, 2), "float32")), np.zeros((8, 1)))
    note = SINGLE_ROWS.format("training", "(3,) and (2, 2)")
    assert notes_of(raised_by(lambda: Trainer(model).fit(data, verbose=0))) == [note]


class Own(keras.Model):
    """Has targets of its own, or a mistake."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(ROWS.shape[1])

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        raise ValueError("mine")


class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise ValueError("mine")


def test_nothing_is_said_of_data_that_may_be_as_it_should():
    own = Own()
    own.compile("sgd", "mse")
    assert notes_of(raised_by(lambda: Trainer(own).fit(ROWS, verbose=0))) == []
    right = raised_by(lambda: Trainer(sequential()).fit(ROWS, LABELS, verbose=0, callbacks=[Stop()]))
    assert (str(right), notes_of(right)) == ("mine", [])
    wrong_shape = raised_by(lambda: Trainer(sequential()).fit(ROWS[:, :-1], LABELS, verbose=0))
    assert notes_of(wrong_shape) == []
