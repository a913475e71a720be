"""A step is inspected without being run, and builds what is not built yet."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.training.step import Step, build_model
from tests.models import CLASSES, FEATURES, arrays, crossentropy

X, Y = arrays(8)
SPEC = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int64))


def unbuilt(optimizer="adam", **arguments):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(CLASSES)])
    model.compile(optimizer, crossentropy(), metrics=["accuracy"], **arguments)
    return model


def test_building_makes_every_variable_and_takes_no_step():
    model = unbuilt()
    specs = build_model(model, Step(model, model.train_step), SPEC)
    assert model.built
    assert model.optimizer.built
    assert set(specs) == {"loss", "accuracy"}
    assert int(model.optimizer.iterations) == 0
    assert all(not np.any(keras.ops.convert_to_numpy(v)) for v in model.metrics_variables)


def test_the_logs_are_carried_only_where_the_metrics_do_not_tell_them():
    model = unbuilt()
    step = Step(model, model.train_step)
    build_model(model, step, SPEC)
    assert not step.carries_logs
    assert step.run_and_check((tf.constant(X), tf.constant(Y)))[1] == {}
    own = Step(model, lambda batch: {**model.train_step(batch), "extra": tf.constant(1.0)})
    build_model(model, own, SPEC)
    assert own.carries_logs
    assert set(own.run_and_check((tf.constant(X), tf.constant(Y)))[1]) == {"loss", "accuracy", "extra"}
    assert set(step.metrics()) == {"loss", "accuracy"}


def test_only_a_guarded_step_stops_at_a_loss_that_is_not_finite():
    model = unbuilt()
    for value, halts, goes_on in [
        (np.nan, True, False),
        (np.inf, True, False),
        (np.nan, False, True),
        (1.0, True, True),
    ]:
        step = Step(model, lambda batch, value=value: {"loss": tf.constant(value)}, halt_on_nonfinite=halts)
        assert bool(step.run_and_check(None)[0]) is goes_on
    assert bool(Step(model, lambda batch: {}, halt_on_nonfinite=True).run_and_check(None)[0])


def test_a_step_that_returns_no_logs_is_refused():
    model = unbuilt()
    with pytest.raises(TypeError, match=r"train_step returned .*; expected a dict of metric names"):
        build_model(model, Step(model, lambda batch: tf.zeros([])), SPEC)


def test_a_step_that_applies_its_own_gradients_still_gets_a_built_optimizer():
    model = unbuilt()
    build_model(model, Step(model, model.test_step), SPEC)
    assert model.optimizer.built


def test_a_model_without_an_optimizer_is_refused():
    model = unbuilt(optimizer=None)
    with pytest.raises(ValueError, match="no optimizer"):
        build_model(model, Step(model, model.train_step), SPEC)
