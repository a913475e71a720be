"""Usual mistakes in data: Keras's message, and a note that says what is wrong with the data."""

from __future__ import annotations

import sys
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, sequential

X, Y = arrays(40)
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
        ((X,), NO_TARGETS.format("training")),
        ((rows(X).batch(8),), NO_TARGETS.format("training")),
        ((rows(X, Y),), SINGLE_ROWS.format("training", X.shape[1:])),
        ((rows(X),), SINGLE_ROWS.format("training", X.shape[1:])),
    ],
)
def test_the_error_is_that_of_keras_and_the_note_says_what_the_data_lacks(data, note, eager):
    def model():
        made = sequential()
        made.compile("sgd", made.loss, run_eagerly=eager)
        return made

    expected = raised_by(lambda: model().fit(*data, verbose=0))
    actual = raised_by(lambda: Trainer(model()).fit(*data, verbose=0))
    assert type(actual) is type(expected)
    assert str(actual).splitlines()[0] == str(expected).splitlines()[0]
    assert notes_of(actual) == [note]
    assert note in "".join(traceback.format_exception(actual))


@needs_notes
@pytest.mark.parametrize("overlap", ["auto", "always"])
@pytest.mark.parametrize(
    ("data", "note"),
    [
        ((X,), NO_TARGETS.format("validation")),
        (rows(X).batch(8), NO_TARGETS.format("validation")),
        (rows(X, Y), SINGLE_ROWS.format("validation", X.shape[1:])),
    ],
)
def test_so_it_is_of_validation_data(data, note, overlap):
    trainer = Trainer(sequential(), validation=ValidationPolicy(overlap=overlap))
    assert notes_of(raised_by(lambda: trainer.fit(X, Y, verbose=0, validation_data=data))) == [note]
    given = data if isinstance(data, tuple) else (data,)
    assert notes_of(raised_by(lambda: trainer.evaluate(*given, verbose=0))) == [note]


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
        self.layer = keras.layers.Dense(X.shape[1])

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
    assert notes_of(raised_by(lambda: Trainer(own).fit(X, verbose=0))) == []
    right = raised_by(lambda: Trainer(sequential()).fit(X, Y, verbose=0, callbacks=[Stop()]))
    assert (str(right), notes_of(right)) == ("mine", [])
    wrong_shape = raised_by(lambda: Trainer(sequential()).fit(X[:, :-1], Y, verbose=0))
    assert notes_of(wrong_shape) == []
