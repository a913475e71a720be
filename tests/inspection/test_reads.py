"""What the code of a validation reads is found, whatever it is behind, and whether it changes."""

from __future__ import annotations

import argparse
import collections
import functools
import os
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._inspection import reads
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.reads import Reading, state_of

SCALE, OTHER = 1.0, 2.0

TABLE = {"scale": 1.0}

SETTINGS = types.ModuleType("settings_of_reads")

SETTINGS.__file__ = __file__

SETTINGS.scale, SETTINGS.other = 1.0, 2.0


class Config:
    def __init__(self):
        self.scale, self.other = 1.0, 2.0


class OfClass:
    scale = 1.0


def helper(x):
    return x * SCALE


def decorated(function):
    @functools.wraps(function)
    def run(*arguments):
        return function(*arguments)

    return run


class Own(keras.layers.Layer):
    """A layer whose `call` is the one that a case gives it."""

    def __init__(self, config=None):
        super().__init__()
        self.config, self.unread, self.factor = config, Config(), 1.0
        self.rows = np.ones(3)

    def train_step(self, data):
        return OTHER


def closed(value):
    return lambda self, x: x * value["scale"]


def layer_of(call, config=None):
    return type("Case", (Own,), {"call": call})(config)


def labels(*roots):
    reading = Reading(roots)
    plain = {f"{type(part).__name__}.{name}" for part, own in reading.parts.values() for name in own}
    return plain | {place.label for place in reading.places.values()}


def imports(self, x):
    import settings_of_reads

    return x * settings_of_reads.scale


CASES = {
    "a global": (lambda self, x: x * SCALE, None, "SCALE"),
    "a container": (lambda self, x: x * TABLE["scale"], None, "TABLE"),
    "behind a function": (lambda self, x: helper(x), None, "SCALE"),
    "behind a decorator": (decorated(lambda self, x: helper(x)), None, "SCALE"),
    "in a function inside": (lambda self, x: [helper(x) for _ in range(2)], None, "SCALE"),
    "a module of the user's": (lambda self, x: x * SETTINGS.scale, None, "scale"),
    "a module that it imports": (imports, None, "scale"),
    "a closure": (closed({"scale": 1.0}), None, "value"),
    "an attribute": (lambda self, x: x * self.factor, None, "Case.factor"),
    "by a text": (lambda self, x: x * getattr(self, "factor"), None, "Case.factor"),  # noqa: B009
    "an array": (lambda self, x: x * self.rows[0], None, "Case.rows"),
    "of a held object": (lambda self, x: x * self.config.scale, Config(), "Config.scale"),
    "of a namespace": (
        lambda self, x: x * self.config.scale,
        argparse.Namespace(scale=1.0),
        "Namespace.scale",
    ),
    "of a class": (lambda self, x: x * OfClass.scale, None, "OfClass.scale"),
    "of a partial": (lambda self, x: self.config(x), functools.partial(closed(TABLE), None), "value"),
    "the environment": (lambda self, x: x * float(os.environ.get("SCALE", 1)), None, "os.environ"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_is_found(case, monkeypatch):
    monkeypatch.setitem(sys.modules, "settings_of_reads", SETTINGS)
    call, config, label = CASES[case]
    found = labels(layer_of(call, config))
    assert label in found
    assert not found & {"OTHER", "other", "Config.other"}


class Weights:
    def __init__(self):
        self.scale = 1.0

    def __call__(self, weights):
        return self._scaled(weights)

    def _scaled(self, weights):
        return keras.ops.sum(weights) * self.scale

    def unused(self):
        return OTHER


def activation(x):
    return x * SCALE


@pytest.mark.parametrize(
    ("part", "label"),
    [
        (keras.layers.Dense(1, activation=activation), "SCALE"),
        (keras.layers.Dense(1, kernel_regularizer=Weights()), "Weights.scale"),
        (keras.layers.Lambda(activation), "SCALE"),
        (keras.metrics.MeanMetricWrapper(lambda y, p: p * SCALE), "SCALE"),
        (tf.function(activation), "SCALE"),
        (activation, "SCALE"),
        (keras.layers.Dense(1).call, "Dense.units"),
    ],
)
def test_what_is_read_by_code_that_keras_s_own_parts_hold(part, label):
    found = labels(part)
    assert label in found
    assert "OTHER" not in found


def test_variables_and_what_the_training_sets_are_not_states():
    layer = layer_of(lambda self, x: x * self.weight * SCALE)
    layer.weight, layer.stop_training = tf.Variable(1.0), True
    before = Reading([layer]).places
    layer.weight.assign(2.0)
    after = Reading([layer]).places
    assert before.keys() == after.keys()
    assert all(place.is_as(before[key]) for key, place in after.items())
    assert "Case.stop_training" not in labels(layer)


def test_too_much_to_look_through_is_said(monkeypatch):
    monkeypatch.setattr(reads, "_MOST_OBJECTS", 10)
    held = [[number] for number in range(20)]
    with pytest.raises(Unclear):
        Reading([lambda x: x * held[0][0]])


@pytest.mark.parametrize(
    ("thing", "change"),
    [
        ({"a": 1}, lambda d: d.update(a=2)),
        ([1, 2], lambda x: x.append(3)),
        ({1}, lambda x: x.add(2)),
        (collections.deque([1]), lambda x: x.append(2)),
        (bytearray(3), lambda x: x.__setitem__(0, 1)),
    ],
)
def test_what_changes_has_another_state(thing, change):
    before = state_of(thing)
    assert state_of(thing) == before
    change(thing)
    assert state_of(thing) != before


@pytest.mark.parametrize("size", [5, 10_000, 5_000_000])
@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_an_array_that_changes_at_an_end_is_seen_to(size, kind):
    array = np.zeros(size, kind)
    before = state_of(array)
    array[-1] = 1
    assert state_of(array) != before


def test_an_array_of_objects_is_known_by_them():
    array = np.array([[1], "a"], object)
    before = state_of(array)
    array[1] = "b"
    assert state_of(array) != before


def test_what_nobody_may_write_to_and_what_is_closed_has_no_state():
    large = np.zeros(5_000_000)
    large.flags.writeable = False
    assert state_of(large) is None
    memory = memoryview(bytearray(3))
    memory.release()
    assert state_of(memory) is None
