"""What a metric's methods read of Python is found in their code; what they compute with tensors is not."""

from __future__ import annotations

import random
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._inspection.metric_code import metrics_by_python, reads_python
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, crossentropy, sequential
from tests.seeds import set_random_seed

SCALE, FIXED = 1.0, 2.0
SETTINGS = types.ModuleType("settings_of_metrics")
SETTINGS.__file__ = __file__
SETTINGS.scale = 1.0


class Config:
    scale = 1.0


def rebind():
    global SCALE
    SCALE = 2.0


def scaled(value):
    return value * Config.scale


def doubled(value):
    return value * FIXED


class Base(keras.metrics.Mean):
    def __init__(self):
        super().__init__(name="base")
        self.options, self.history, self.factor, self.table = Config(), [1], 2.0, np.ones(2)
        self.inner = keras.metrics.Mean()
        self.total_seen = self.add_weight(name="seen", initializer="zeros")
        self.function = doubled

    def _scaled(self, value):
        return value * self.options.scale


def closed_over(value, *, again):
    def set_again():
        nonlocal value
        value = 3.0

    class Closed(Base):
        def result(self):
            return super().result() * value

    Closed.again = set_again if again else None
    return Closed


def metric(body):
    return type("Own", (Base,), {"result": body})


READING = [
    lambda self: self.inner.result() * SCALE,
    lambda self: self.inner.result() * self.factor,
    lambda self: self.inner.result() * self.options.scale,
    lambda self: self.inner.result() + len(self.history),
    lambda self: self.inner.result() + self.table[0],
    lambda self: scaled(self.inner.result()),
    lambda self: self._scaled(self.inner.result()),
    lambda self: self.inner.result() * Config.scale,
    lambda self: self.inner.result() * SETTINGS.scale,
    lambda self: self.inner.result() * np.random.rand(),
    lambda self: self.inner.result() * random.random(),
    lambda self: self.inner.result() * time.time(),
]
COMPUTING = [
    lambda self: self.inner.result() * FIXED,
    lambda self: keras.ops.cast(self.inner.result(), self.dtype) * 2.0,
    lambda self: tf.math.divide_no_nan(self.inner.result(), self.total_seen + keras.config.epsilon()),
    lambda self: doubled(self.inner.result()),
    lambda self: self.function(self.inner.result()),
    lambda self: keras.ops.maximum(self.inner.result(), np.pi),
]


@pytest.mark.parametrize("body", READING)
def test_what_is_read_of_python_is_found(body):
    own = metric(body)()
    assert reads_python(own, own.result)


@pytest.mark.parametrize("body", COMPUTING)
def test_what_is_computed_of_tensors_is_not(body):
    own = metric(body)()
    assert not reads_python(own, own.result)


def test_a_number_of_a_closure_counts_if_somebody_gives_it_another_value():
    for again in (False, True):
        own = closed_over(2.0, again=again)()
        assert reads_python(own, own.result) is again, "a function that is gone sets nothing"
    factor = 2.0
    own = metric(lambda self: self.inner.result() * factor)()
    assert not reads_python(own, own.result)


def test_keras_s_own_metrics_read_nothing():
    for own in (keras.metrics.Mean(), keras.metrics.F1Score(), keras.metrics.AUC()):
        assert not reads_python(own, own.result)


def test_metrics_that_go_by_a_plain_value_are_told_from_those_that_can_be_compiled():
    """A trace would keep for ever what the value was when it was made; Keras asks each time."""

    class Doubled(keras.metrics.Mean):
        def result(self):
            return super().result() * 2

    class Scaled(keras.metrics.Mean):
        factor = 2.0

        def result(self):
            return super().result() * self.factor

    class Resets(keras.Sequential):
        def reset_metrics(self):
            super().reset_metrics()

    def compiled(kind=keras.Sequential, metric=None):
        model = kind([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
        model.compile("sgd", crossentropy())
        model.own = metric
        return metrics_by_python(model)

    assert compiled() is None
    assert compiled(metric=Doubled()) is None
    assert compiled(metric=Scaled()) == "Scaled.result reads 'factor', which Python may change"
    assert compiled(Resets) == "Resets.reset_metrics may depend on Python's state"


class Weighed(keras.metrics.Metric):
    """Has a constant, which is a number or a tensor."""

    def __init__(self, constant):
        super().__init__(name="weighed")
        self.seen = self.add_weight(name="seen", initializer="zeros")
        self.constant = constant()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign_add(keras.ops.cast(keras.ops.size(y_pred), "float32"))

    def result(self):
        return self.constant * self.seen


class Doubling:
    """A number that says by code of its own what it is times another."""

    def __mul__(self, other):
        return 2.0 * other


CONSTANTS = {
    "object": (Doubling, False),
    "number": (lambda: 2.0, True),
    "tensor": (lambda: keras.ops.convert_to_tensor(2.0), True),
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_constant_overlaps_in_a_tensor_as_its_message_says(kind):
    constant, overlaps = CONSTANTS[kind]
    expected = sequential("sgd", [Weighed(constant)]).fit(X, Y, validation_data=(X, Y), verbose=0)
    trainer = Trainer(sequential("sgd", [Weighed(constant)]), validation=ValidationPolicy(overlap="always"))
    assert_same_history(trainer.fit(X, Y, validation_data=(X, Y), verbose=0).history, expected.history)
    said = [message for message in trainer.messages if "reads 'constant', which Python may change" in message]
    assert bool(said) is not overlaps


X, Y = arrays(48)


class Sets(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        Config.scale = epoch + 2.0


def fitted(ours, model):
    Config.scale = 1.0
    trained = Trainer(model, validation=ValidationPolicy(overlap="always")) if ours else model
    arguments = {"validation_data": (X, Y), "callbacks": [Sets()], "verbose": 0}
    return trained.fit(X, Y, epochs=4, shuffle=False, **arguments).history


class NamesMetrics(keras.Sequential):
    """A model that says which its metrics are each time that it is asked."""

    def compile(self, *arguments, **settings):
        super().compile(*arguments, **settings)
        self.first, self.second = keras.metrics.Mean(name="seen"), keras.metrics.Sum(name="seen")

    def test_step(self, data):
        x, y = data
        p = self(x, training=False)
        self.first.update_state(p)
        self.second.update_state(p)
        self._loss_tracker.update_state(self.compute_loss(x, y, p))
        return {"loss": self._loss_tracker.result(), "seen": self.first.result()}


class Fixed(NamesMetrics):
    @property
    def metrics(self):
        return [self._loss_tracker, self.first]


class BySetting(NamesMetrics):
    @property
    def metrics(self):
        return [self._loss_tracker, self.first if Config.scale < 3 else self.second]


class ByCount(NamesMetrics):
    @property
    def metrics(self):
        return [self._loss_tracker, *(self.first, self.second)[: int(Config.scale) - 1]]


def naming(kind):
    set_random_seed(7)
    model = kind([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy())
    return model


def test_metrics_named_by_a_setting_are_told_from_those_that_stay():
    assert metrics_by_python(naming(Fixed)) is None
    assert metrics_by_python(naming(BySetting)) == "BySetting.metrics reads 'Config', which Python may change"
    assert metrics_by_python(naming(ByCount)) == "ByCount.metrics reads 'Config', which Python may change"


@pytest.mark.parametrize("kind", [Fixed, BySetting, ByCount])
@pytest.mark.by_default("ByCount", "Fixed")
def test_metrics_named_by_a_property_give_the_numbers_of_keras(kind):
    expected, actual = fitted(False, naming(kind)), fitted(True, naming(kind))
    assert_same_history(actual, expected)
