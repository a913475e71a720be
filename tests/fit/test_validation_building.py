"""What a `fit` asks of its validation follows from its settings and its callbacks."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy, ValidationSet
from overlap_train._fit import validation_building as module
from overlap_train._fit.validation_building import _set_request, build_validation, make_sources
from tests.networks import arrays, sequential

kc = keras.callbacks
STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")
SETS = {"": ValidationSet(data=arrays(20), batch_size=4)}


class OwnStep(Trainer):
    def validation_step(self, batch):
        return super().validation_step(batch)


class Prints(kc.Callback):
    def on_test_batch_end(self, batch, logs=None):
        print(logs)


class SetsWeights(kc.Callback):
    def on_test_batch_begin(self, batch, logs=None):
        self.model.set_weights(self.weights)


@pytest.fixture(scope="module")
def model():
    made = sequential("sgd")
    made.evaluate(*arrays(4), verbose=0)  # which builds the metrics
    return made


@pytest.fixture
def asked(monkeypatch):
    """Returns a function that builds a suite of a trainer, and gives what was asked for it."""
    monkeypatch.setattr(module, "prepare_sets", lambda request, sets: [])
    monkeypatch.setattr(module, "build_suite", lambda request, *_: request)

    def build(trainer, callbacks=(), **options):
        found = kc.CallbackList(list(callbacks), model=trainer.model)
        settings, resources = trainer._settings(), contextlib.ExitStack()
        sources = make_sources(settings, SETS)
        return build_validation(settings, SETS, found, sources, resources, **options)[1]

    return build


def test_the_models_own_step_is_that_of_the_model(model, asked):
    stock, own = Trainer(model), OwnStep(model)
    assert asked(stock).settings.validation_function == model.test_step
    assert asked(own).settings.validation_function == own.validation_step
    assert asked(own).settings.validation_identity != asked(stock).settings.validation_identity


def test_callbacks_that_listen_or_act_are_told_apart(model, asked):
    quiet, listening, acting = (
        asked(Trainer(model), callbacks)
        for callbacks in ([kc.EarlyStopping()], [Prints()], [kc.EarlyStopping(), Prints(), SetsWeights()])
    )
    assert (quiet.listened, quiet.acts) == (False, None)
    assert (listening.listened, listening.acts) == (True, None)
    assert (acting.listened, acting.acts) == (True, "SetsWeights")


def test_a_validation_for_a_training_elsewhere_asks_no_callback_of_this_process(model):
    found = kc.CallbackList([SetsWeights()], model=model)
    request = _set_request(Trainer(model)._settings(), None, found, apart=True, within_evaluate=False)
    assert (request.acts, request.listened, request.counts_ahead) == (None, True, False)


@pytest.mark.parametrize("within", [False, True])
def test_it_is_said_whether_evaluate_asks(model, asked, within):
    assert asked(Trainer(model), within_evaluate=within).within_evaluate is within


@pytest.mark.cpu_only("batches are joined where operations need not repeat")
def test_batches_of_arrays_are_joined_where_nobody_sees_them(model, asked):
    def together(trainer, *callbacks):
        most_rows = asked(trainer, callbacks).most_rows
        return None if most_rows is None else most_rows(arrays(8))

    assert together(Trainer(model)) == 1024
    assert together(Trainer(model), kc.EarlyStopping()) == 1024
    assert together(Trainer(model), Prints()) is None
    assert together(OwnStep(model)) is None
    assert together(Trainer(model, preprocess=lambda x, y: (x, y))) is None


def test_devices_of_the_policy_come_before_those_of_the_replicas(asked):
    with STRATEGY.scope():
        made = sequential("sgd")
    trainer = Trainer(made, strategy=STRATEGY)
    assert asked(trainer).settings.devices == ()
    trainer.replicas.__class__ = type("Spread", (type(trainer.replicas),), {"spread": ("CPU:0", "CPU:1")})
    assert asked(trainer).settings.devices == ("CPU:0", "CPU:1")
    trainer.validation = ValidationPolicy(workers=["CPU:0"])
    assert asked(trainer).settings.devices == ("CPU:0",)


def test_a_suite_of_this_host_snapshots_what_training_and_validation_use(monkeypatch):
    outside = tf.Variable(3.0, name="outside")

    class Shifted(Trainer):
        def validation_step(self, batch):
            x, y = batch
            return super().validation_step((x + outside, y))

    trainer = Shifted(sequential("sgd"))
    with contextlib.ExitStack() as resources:
        found = kc.CallbackList([], model=trainer.model)
        settings = trainer._settings()
        state, suite, _ = build_validation(settings, SETS, found, make_sources(settings, SETS), resources)
        assert [float(np.asarray(value)) for value in state.read().outside] == [3.0]
        expected = state.read()
        (result,) = [suite.evaluate(name, expected) for name in SETS]
        assert result.metrics.keys() == {"loss", "accuracy"}
