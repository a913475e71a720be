"""Which of Python's values a trace may hold are seen to be set."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train._validation.python_state import PythonState


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
    state = PythonState(model)
    assert state.changed() is None
    monkeypatch.setattr(owner(model), name, value, raising=False)
    assert state.changed() == found


def test_what_is_frozen_is_named(model):
    layer = model.layers[-1]
    state = PythonState(model)
    layer.trainable = False
    try:
        assert state.changed() == "Dense.trainable"
    finally:
        layer.trainable = True
