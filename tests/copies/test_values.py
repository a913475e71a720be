"""What is plain is copied; what is not says so, and whether anything is lost by that."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import fractions
import functools
import threading
import types
import weakref
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._copies.values import (
    Copier,
    NotPlainError,
    ObjectValue,
    VariableValue,
    model_variables,
    places,
)


def copied(value, **options):
    return Copier(**options).copy(value)


class Box:
    def __init__(self, content=None):
        self.content = content


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = [1]


class Board(dict):
    """A dict with something of its own."""


class Phase(enum.Enum):
    WARM = 1


@dataclasses.dataclass
class Best:
    epoch: int = 0


@dataclasses.dataclass(frozen=True)
class Fixed:
    epoch: int = 0


class Says:
    def __init__(self, state):
        self.state, self.thread = state, threading.Thread()

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


@pytest.mark.parametrize(
    ("value", "attributes", "items"),
    [
        (Box([1]), {"content": [1]}, None),
        (Box(Box(2)), {"content": {"content": 2}}, None),
        (Slotted(), {"a": [1]}, None),
        (Board(a=1), {}, {"a": 1}),
        (Best(3), {"epoch": 3}, None),
        (types.SimpleNamespace(n=1), {"n": 1}, None),
        (Phase.WARM, {}, "WARM"),
        (Says({"n": 1}), {"get_state()": {"n": 1}}, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_is_its_plain_attributes_and_what_it_holds(value, attributes, items):
    def shown(copy):
        plain = not isinstance(copy, ObjectValue)
        return copy if plain else {name: shown(part) for name, part in copy.attributes.items()}

    copy = copied(value)
    assert (copy.kind, shown(copy), copy.items) == (type(value).__name__, attributes, items)
    assert copy.lost == ()


CONSTANT = [
    *(print, [print, len], {"function": print}, threading.Lock(), keras.losses.MeanSquaredError()),
    *(tf.data.Dataset.range(3), range(3), np),
]
LOST = [
    *([print, 3], object(), (i for i in range(3)), threading.Thread(), fractions.Fraction(1, 2)),
    *({Phase.WARM: 1}, Fixed(), Says(object()), np.array([None]), np.ma.masked_array([1])),
    *(np.zeros(2, "V3"), tf.constant("text"), tf.ragged.constant([[1], []])),
]


@pytest.mark.parametrize(
    ("value", "constant"),
    [*((value, True) for value in CONSTANT), *((value, False) for value in LOST)],
    ids=lambda value: f"{type(value).__name__}",
)
def test_what_is_not_plain_says_whether_anything_is_lost(value, constant):
    with pytest.raises(NotPlainError) as caught:
        copied(value)
    assert caught.value.constant is constant


def test_what_of_an_object_is_not_plain_is_named_and_the_rest_is_kept():
    box = Box(Box([1]))
    box.thread, box.content.parts, box.content.function = threading.Thread(), iter([1]), print
    copy = copied(box)
    assert copy.attributes["content"].attributes == {"content": [1]}
    assert copy.lost == ("content.parts", "thread")


def test_what_refers_to_one_above_loses_nothing_and_a_list_in_itself_does():
    box = Box([1])
    box.inner = Box(box)
    assert (list(copied(box).attributes), copied(box).lost) == (["content"], ())
    loop = []
    loop.append(loop)
    with pytest.raises(NotPlainError, match="a container that holds itself") as caught:
        copied(loop)
    assert not caught.value.constant


def test_what_two_hold_has_one_copy_in_all_that_is_copied_together():
    shared, copier = [np.zeros(1)], Copier()
    first, second = copier.copy({"a": shared, "b": (shared, Box(shared))}), copier.copy(shared)
    assert first["a"] is first["b"][0] is first["b"][1].attributes["content"] is second
    assert second[0] is not shared[0]


def test_a_container_that_stands_deep_and_is_deep_counts_as_deep_as_it_is():
    inner = functools.reduce(lambda value, _: [value], range(50), [])
    assert copied([inner, inner]) == [inner, inner]
    around = functools.reduce(lambda value, _: [value], range(20), inner)
    for value in ([inner, around], [around, inner], functools.reduce(lambda v, _: [v], range(400), [])):
        with pytest.raises(NotPlainError, match="in more than 60 others"):
            copied(value)


class Lazy:
    """Stands for an object that is not there yet, as the proxies of web frameworks do."""

    def __getattribute__(self, name):
        raise RuntimeError("outside of its context")


@pytest.mark.parametrize("make", [Lazy, lambda: weakref.proxy(Box())])
def test_what_raises_when_it_is_looked_at_is_not_plain(make):
    box = Box([1])
    box.odd = make()
    copy = copied(box)
    assert (copy.attributes, copy.lost) == ({"content": [1]}, ("odd",))


def test_variables_are_taken_without_a_copy_of_their_buffer():
    variable = keras.Variable(np.zeros(1000, np.float32))
    value = copied(variable)
    assert isinstance(value, VariableValue)
    variable.assign_add(np.ones(1000, np.float32))
    assert float(tf.reduce_max(value.tensor)) == 0.0


@pytest.mark.parametrize(
    "make",
    [keras.metrics.Mean, lambda: keras.random.SeedGenerator(1), lambda: tf.random.Generator.from_seed(1)],
)
def test_of_keras_and_tensorflow_the_variables_are_taken_but_not_the_model_s(make):
    value = make()
    variables = list(getattr(value, "variables", ())) or [value.state]
    assert len(copied(value).attributes) == len(variables)
    with pytest.raises(NotPlainError, match="a part of the model") as caught:
        copied(value, foreign=lambda: {id(variable) for variable in variables})
    assert caught.value.constant


def test_paths_and_dates_are_plain_and_a_date_in_a_named_zone_is_not():
    zone = datetime.timezone(datetime.timedelta(hours=1))
    for value in (Path("a"), datetime.datetime(2026, 1, 2, tzinfo=zone), datetime.timedelta(1)):
        assert copied(value) is value


def test_what_has_to_be_there_is_counted_by_what_holds_it():
    value = copied(Box({"means": [tf.Variable(1.0), tf.Variable(2.0)], "best": Best(), "n": 3}))
    assert places(value, "Box") == {"Box": 1, "Box.content": 3}


def test_a_model_s_variables_are_known_by_keras_s_object_and_by_tensorflow_s(model):
    model.optimizer.build(model.trainable_variables)
    known = model_variables(model)
    for variable in (model.layers[0].kernel, model.optimizer.iterations, model.metrics[0].variables[0]):
        assert id(variable) in known
        assert id(variable.value) in known
    assert id(tf.Variable(0.0)) not in known
    assert not model_variables(None)
