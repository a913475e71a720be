"""What callbacks keep is copied, and put back where it was."""

from __future__ import annotations

import functools
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from overlap_train._copies.objects import attributes_of
from overlap_train._copies.values import Copies, Resource, VariableValue, copied, standing_in
from tests.copies.strategies import VALUES


@given(value=VALUES)
@settings(max_examples=60, deadline=None)
def test_a_copy_is_the_value(value):
    assert copied(value) == value


class Box:
    def __init__(self, content=None):
        self.content = content


def test_what_two_hold_has_one_copy_in_all_that_is_copied_together():
    shared, copies = [np.zeros(1)], Copies()
    first = copied({"a": shared, "b": (shared, Box(shared))}, look_into=attributes_of, copies=copies)
    second = copied(shared, copies=copies)
    assert first["a"] is first["b"][0] is first["b"][1].attributes["content"] is second
    assert second[0] is not shared[0]


def test_an_object_that_is_not_whole_stands_in_no_container():
    """Also where it has been copied before, as an attribute of its own."""
    box = Box(print)
    value = Box([box])
    value.first = box
    for names in (["first", "content"], ["content", "first"]):
        value.__dict__ = {name: vars(value)[name] for name in names}
        kept = copied(value, look_into=attributes_of)
        assert list(kept.attributes) == ["first"]
        assert kept.lost == ("content",)


def test_a_container_that_stands_deep_and_is_deep_counts_as_deep_as_it_is():
    inner = functools.reduce(lambda value, _: [value], range(50), [])
    assert copied([inner, inner]) == [inner, inner]
    around = functools.reduce(lambda value, _: [value], range(20), inner)
    for value in ([inner, around], [around, inner]):
        with pytest.raises(Resource, match="in more than 60 others"):
            copied(value)


@pytest.mark.parametrize("around", [lambda each: [each], lambda each: {1: (each,)}, lambda each: each])
def test_what_has_to_be_there_is_found_in_a_copy(around):
    assert standing_in(copied(around(keras.metrics.Mean()))).kind.endswith(":Mean")
    assert standing_in(copied([1, {"a": (2,)}])) is None


@pytest.mark.parametrize(
    "value",
    [
        *(np.array([None]), np.ma.masked_array([1]), tf.constant("text"), tf.ragged.constant([[1], []])),
        *(object(), np.void(b"abc"), np.zeros(2, "V3")),
    ],
    ids=["objects", "masked", "text tensor", "ragged", "object", "raw", "raw array"],
)
def test_values_of_other_kinds_are_resources(value):
    with pytest.raises(Resource):
        copied(value)


def test_variables_are_captured_without_a_copy_of_their_buffer():
    variable = keras.Variable(np.zeros(1000, np.float32))
    value = copied(variable)
    assert isinstance(value, VariableValue)
    variable.assign_add(np.ones(1000, np.float32))
    assert float(tf.reduce_max(value.tensor)) == 0.0


@pytest.mark.parametrize(
    ("value", "constant"),
    [
        (print, True),
        ([print, len], True),
        ([print, 3], False),
        ({"function": print}, True),
        (object(), False),
        ((i for i in range(3)), False),
        (keras.losses.MeanSquaredError(), True),
        (tf.data.Dataset.range(3), True),
    ],
    ids=["code", "codes", "code and a number", "named code", "object", "iterator", "loss", "dataset"],
)
def test_a_resource_says_whether_anything_is_lost(value, constant):
    with pytest.raises(Resource) as caught:
        copied(value)
    assert caught.value.constant is constant


class Lazy:
    """Stands for an object that is not there yet, as the proxies of web frameworks do."""

    def __getattribute__(self, name):
        raise RuntimeError("outside of its context")


class Unready:
    @property
    def __dict__(self):
        raise OSError("not ready")


def gone():
    return weakref.proxy(Box())


@pytest.mark.parametrize("make", [Lazy, Unready, gone])
def test_what_raises_when_it_is_looked_at_is_a_resource(make):
    with pytest.raises(Resource, match=r"that raises (RuntimeError|OSError|ReferenceError)"):
        copied(make(), look_into=attributes_of)
    box = Box([1])
    box.odd = make()
    kept = copied(box, look_into=attributes_of)
    assert kept.attributes == {"content": [1]}
    assert kept.lost == ("odd",)


def test_a_container_in_too_many_others_is_a_resource():
    value = []
    for _ in range(400):
        value = [value]
    with pytest.raises(Resource, match="in more than 60 others"):
        copied(value)
