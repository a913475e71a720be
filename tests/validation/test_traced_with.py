"""What Python held when a validation was traced is told from what it holds later."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train._inspection.traces import Traces
from overlap_train._validation.validation_step import TracedWith


class Scaled(keras.layers.Layer):
    default = 3

    def __init__(self):
        super().__init__()
        self.scale, self.shape_of, self.not_a_number = 1.0, (1, (2, 3)), float("nan")
        self.tables = {"a": 1}

    def call(self, inputs):
        return inputs * self.scale


class Weighted(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.weight = 1.0

    def call(self, y_true, y_pred):
        return self.weight * keras.ops.mean(y_pred - y_true, axis=-1)


class Counted(keras.metrics.MeanSquaredError):
    step = 1


@pytest.fixture(scope="module")
def model():
    inner = keras.Sequential([keras.Input((2,)), Scaled()])
    model = keras.Sequential([keras.Input((2,)), inner, keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("sgd", Weighted(), metrics=[Counted()])
    model.evaluate(np.ones((1, 2)), np.ones((1, 1)), verbose=0)
    return model


def scaled(model):
    return model.layers[0].layers[0]


def counted(model):
    return next(m for m in model.metrics[1].metrics if isinstance(m, Counted))


@pytest.mark.parametrize(
    ("owner", "name", "value", "found"),
    [
        (scaled, "scale", 2.0, "Scaled.scale"),
        (scaled, "shape_of", (1, (2, 4)), "Scaled.shape_of"),
        (scaled, "default", 4, "Scaled.default"),
        (lambda model: model.layers[1], "rate", 0.1, "Dropout.rate"),
        (lambda model: model.loss, "weight", 0.5, "Weighted.weight"),
        (counted, "step", 2, "Counted.step"),
        (scaled, "scale", 1.0, None),
        (scaled, "not_a_number", float("nan"), None),
        (scaled, "tables", {"a": 2}, None),
        (scaled, "_private", 1, None),
        (lambda model: model, "stop_training", True, None),
    ],
)
def test_what_is_set_to_another_value_is_named(model, monkeypatch, owner, name, value, found):
    state = TracedWith(model, model.test_step)
    assert state.changed() is None
    monkeypatch.setattr(owner(model), name, value, raising=False)
    assert state.changed() == found


def test_what_is_frozen_is_named(model):
    layer = model.layers[-1]
    state = TracedWith(model, model.test_step)
    layer.trainable = False
    try:
        assert state.changed() == "Dense.trainable"
    finally:
        layer.trainable = True


TABLE = {"scale": 1.0}


class Steps:
    """A step of its own, which reads a table."""

    def step(self, batch):
        return {"loss": TABLE["scale"] * batch}


def test_what_the_step_reads_is_named(model, monkeypatch):
    state = TracedWith(model, Steps().step)
    assert state.changed() is None
    monkeypatch.setitem(TABLE, "scale", 2.0)
    assert state.changed() == "TABLE"
    assert TracedWith(model, model.test_step).changed() is None


def test_a_setting_of_keras_is_named(model):
    state = TracedWith(model, model.test_step)
    before = keras.config.epsilon()
    keras.config.set_epsilon(0.1)
    try:
        assert state.changed() == "keras.config.epsilon"
    finally:
        keras.config.set_epsilon(before)
    assert state.changed() is None


def test_what_is_gone_is_named(model):
    scaled(model).extra = 1.0
    state = TracedWith(model, lambda batch: scaled(model).extra * batch)
    assert state.changed() is None
    del scaled(model).extra
    assert state.changed() == "Scaled.extra"


def test_an_attribute_that_nothing_reads_is_not_missed_before_it_is_there(model):
    state = TracedWith(model, model.test_step)
    scaled(model).told_later = 1
    try:
        assert state.changed() is None
    finally:
        del scaled(model).told_later


class Hostile:
    @property
    def __class__(self):
        raise RuntimeError("nobody asks me")


@pytest.mark.filterwarnings("error")
def test_what_cannot_be_read_counts_as_set(model):
    held = Hostile()
    state = TracedWith(model, lambda batch: held.scale * batch)
    assert state.changed() == "something that its code may read"


def test_traces_of_the_validation_are_forgotten(model):
    token = object()
    assert Traces.of(model).get("test", token, "key", lambda: 1) == 1
    TracedWith(model, model.test_step).forget_validation()
    assert Traces.of(model).get("test", token, "key", lambda: 2) == 2


def test_of_what_runs_eagerly_nothing_is_traced(model, monkeypatch):
    state = TracedWith(model, Steps().step)
    monkeypatch.setitem(TABLE, "scale", 2.0)
    monkeypatch.setattr(model, "run_eagerly", True)
    assert state.changed() is None
