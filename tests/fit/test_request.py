"""A call of `fit` is checked and understood before anything starts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, EvaluationFunction, Trainer, ValidationPolicy, ValidationSet
from overlap_train._keras import training as keras_training
from tests.fit.requests import request_of
from tests.networks import FEATURES, ROWS, arrays, sequential
from tests.parallel.together import ThreadHost

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")
CALLBACKS = [keras.callbacks.Callback()]


def length(model):
    return 1.0


@pytest.fixture(scope="module")
def model():
    return sequential()


@pytest.fixture(scope="module")
def replicated():
    with STRATEGY.scope():
        return sequential()


def dataset(rows=ROWS):
    return tf.data.Dataset.from_tensor_slices(arrays(rows)).batch(20)


def test_what_was_given_is_in_it(model):
    trainer = Trainer(model)
    request = request_of(
        trainer, batch_size=20, epochs=7, initial_epoch=2, steps_per_epoch=4, verbose=2, callbacks=CALLBACKS
    )
    assert request.model is model
    assert (request.feed.full_batch, request.feed.num_batches) == (20, 11)
    assert (request.initial_epoch, request.epochs, request.steps_per_epoch) == (2, 7, 4)
    assert (request.verbose, request.callbacks) == (2, CALLBACKS)
    assert (request.sets, request.functions, request.checkpoints) == ({}, {}, None)


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


def test_functions_come_from_the_policy_and_from_the_data(model):
    trainer = Trainer(model, validation=ValidationPolicy(functions={"length": length}))
    data = {"clean": dataset(), "other": EvaluationFunction(length, freq=3)}
    request = request_of(trainer, validation_data=data, validation_freq=2)
    assert list(request.sets) == ["clean"]
    assert {name: each.freq for name, each in request.functions.items()} == {"length": None, "other": 3}
    assert request.validation_freq == 2


def test_whether_a_pipeline_prepares_the_batches(model):
    assert not request_of(Trainer(model)).streamed
    assert request_of(Trainer(model, in_memory_bytes=ROWS * FEATURES)).streamed
    assert request_of(Trainer(model), x=dataset(), y=None).streamed


@pytest.mark.parametrize(("overlap", "judges"), [("auto", True), ("always", False)])
def test_running_ahead_has_to_pay_where_one_host_does_all(replicated, overlap, judges):
    trainer = Trainer(replicated, validation=ValidationPolicy(overlap=overlap), strategy=STRATEGY)
    assert request_of(trainer).judges_overlap is judges
    trainer.validation = ValidationPolicy(overlap=overlap, evaluator="run")
    assert not request_of(trainer).judges_overlap


def test_only_the_chief_talks(replicated):
    trainer = Trainer(replicated, strategy=STRATEGY)
    said = []
    for index in (0, 1):
        trainer.replicas.hosts = ThreadHost(index, [None, None], None)
        said.append(request_of(trainer, verbose=2).verbose)
    assert said == [2, 0]


def test_functions_are_the_evaluators_where_there_is_one(replicated):
    trainer = Trainer(
        replicated, validation=ValidationPolicy(functions={"length": length}), strategy=STRATEGY
    )
    assert list(request_of(trainer).functions) == ["length"]
    trainer.replicas.hosts = ThreadHost(0, [None, None], None)
    assert list(request_of(trainer).functions) == ["length"]
    trainer.validation = ValidationPolicy(functions={"length": length}, evaluator="run")
    assert request_of(trainer).elsewhere == [1]


def test_a_model_compiled_anew_outside_the_scope_is_refused(replicated):
    trainer = Trainer(replicated, strategy=STRATEGY)
    with STRATEGY.scope():
        other = sequential()
    other.optimizer = keras.optimizers.SGD()
    trainer.model = other
    with pytest.raises(ValueError, match="the optimizer SGD of the model"):
        request_of(trainer)


def test_resume_names_a_directory_or_a_policy(model, tmp_path):
    policy = CheckpointPolicy(directory=tmp_path, keep=7)
    assert request_of(Trainer(model), resume=policy).checkpoints.keep == 7
    assert str(request_of(Trainer(model), resume=str(tmp_path)).checkpoints.directory) == str(tmp_path)
    with pytest.raises(TypeError, match="resume"):
        request_of(Trainer(model), resume=7)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"epochs": -1}, ValueError, "epochs"),
        ({"initial_epoch": -1}, ValueError, "initial_epoch"),
        ({"batch_size": "20"}, TypeError, "batch_size"),
        ({"verbose": 3}, ValueError, "verbose"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_data_is_looked_at(model, given, error, message):
    with pytest.raises(error, match=message):
        request_of(Trainer(model), x="no data", **given)


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
