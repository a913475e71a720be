"""A call of `fit` is checked and understood before anything starts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationSet
from overlap_train._keras import training as keras_training
from tests.fit.requests import request_of
from tests.networks import FEATURES, ROWS, arrays, sequential

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")


@pytest.fixture(scope="module")
def model():
    return sequential()


@pytest.fixture(scope="module")
def replicated():
    with STRATEGY.scope():
        return sequential()


def dataset(rows=ROWS):
    return tf.data.Dataset.from_tensor_slices(arrays(rows)).batch(20)


def test_validation_data_says_how_it_is_validated_where_the_set_does_not(model):
    own = ValidationSet(data=arrays(30), freq=5, batch_size=3)
    (plain,) = request_of(Trainer(model), validation_data=arrays(40), batch_size=16).sets.values()
    assert (plain.freq, plain.steps, plain.batch_size) == (1, None, 16)
    given = dict(validation_freq=2, validation_steps=3, validation_batch_size=8)
    sets = request_of(Trainer(model), validation_data={"own": own, "other": dataset(40)}, **given).sets
    assert sets["own"] is own
    assert (sets["other"].freq, sets["other"].steps, sets["other"].batch_size) == (2, 3, 8)


def test_a_split_is_the_validation_where_there_is_no_other(model):
    request = request_of(Trainer(model), validation_split=0.25, batch_size=1)
    (validation,) = request.sets.values()
    held_out = len(validation.data[0])
    assert held_out == ROWS - int(ROWS * 0.75)
    assert request.feed.num_batches == ROWS - held_out
    (validation,) = request_of(Trainer(model), validation_split=0.25, validation_data=arrays(9)).sets.values()
    assert len(validation.data[0]) == 9


def test_a_model_compiled_anew_outside_the_scope_is_refused(replicated):
    trainer = Trainer(replicated, strategy=STRATEGY)
    with STRATEGY.scope():
        other = sequential()
    other.optimizer = keras.optimizers.SGD()
    trainer.model = other
    with pytest.raises(ValueError, match="the optimizer SGD of the model"):
        request_of(trainer)


def test_a_model_that_is_not_compiled_is_refused():
    with pytest.raises(ValueError, match="compile"):
        request_of(Trainer(keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])))


def test_the_caps_for_debugging_are_those_of_the_request(model, monkeypatch):
    monkeypatch.setattr(keras_training, "capped_steps", lambda steps: 3)
    monkeypatch.setattr(keras_training, "capped_epochs", lambda epochs: 2)
    request = request_of(Trainer(model), epochs=9)
    assert (request.steps_per_epoch, request.epochs) == (3, 2)


@pytest.mark.nightly
def test_numbers_in_arrays_and_tensors_are_those_of_keras():
    given = dict(
        batch_size=tf.constant(20),
        epochs=np.array(3),
        initial_epoch=tf.constant(1),
        steps_per_epoch=tf.constant(4),
        validation_steps=np.int8(1),
        validation_batch_size=tf.constant(8),
        validation_split=tf.constant(0.25),
        shuffle=np.array(0),
        verbose=tf.constant(0),
    )
    x, y = arrays()
    histories = [make(sequential()).fit(x, y, **given).history for make in (lambda m: m, Trainer)]
    assert histories[0].keys() == histories[1].keys()
    for name, values in histories[0].items():
        np.testing.assert_allclose(values, histories[1][name], rtol=1e-5)


@pytest.mark.nightly
def test_variables_of_keras_are_data():
    x, y = arrays()
    models = [sequential(), sequential()]
    for make, model in zip((lambda m: m, Trainer), models, strict=True):
        make(model).fit(keras.Variable(x), keras.Variable(y), shuffle=False, verbose=0)
    for left, right in zip(models[0].weights, models[1].weights, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
