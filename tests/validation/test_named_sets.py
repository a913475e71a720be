"""What counts as one validation set or as several."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

from overlap_train import ValidationSet
from overlap_train._validation.given_sets import is_set, named_sets
from tests.networks import arrays

X, Y = arrays(40)
DEFAULT = ValidationSet(data=None, freq=3, steps=7, batch_size=8)


def dataset(size=8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


def generator():
    yield X, Y


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((X, Y), True),
        (dataset(), True),
        (generator(), True),
        (ValidationSet(data=(X, Y)), True),
        (X, False),
        ([X, Y], False),
        (None, False),
        ({"a": X}, False),
    ],
    ids=["tuple", "dataset", "generator", "set", "array", "list", "none", "dict"],
)
def test_what_is_a_set_of_its_own(value, expected):
    assert is_set(value) is expected


def test_a_set_that_says_more_needs_a_name():
    with pytest.raises(TypeError, match=r'a ValidationSet without a name; pass a dict such as {"clean"'):
        named_sets(ValidationSet(data=(X, Y)), DEFAULT)


def test_no_data_is_no_set():
    assert named_sets(None, DEFAULT) == {}


@pytest.mark.parametrize("data", [(X, Y), {"left": X, "right": Y}, {"left": X, "both": (X, Y)}])
def test_data_alone_is_one_set_without_a_name(data):
    (chosen,) = named_sets(data, DEFAULT).items()
    assert chosen[0] == ""
    assert chosen[1] == dataclasses.replace(DEFAULT, data=chosen[1].data)
    assert chosen[1].data is data


def test_several_sets_keep_their_names_and_what_they_say_of_themselves():
    own = ValidationSet(data=(X, Y), freq=5)
    sets = named_sets({"clean": (X, Y), "noisy": own}, DEFAULT)
    assert list(sets) == ["clean", "noisy"]
    assert (sets["clean"].freq, sets["clean"].steps, sets["clean"].batch_size) == (3, 7, 8)
    assert sets["noisy"] is own


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({}, ValueError, "validation_data is an empty dict"),
        ({3: (X, Y)}, TypeError, "names of validation sets must be strings; got 3"),
        ({"": (X, Y)}, ValueError, "must not be empty"),
        ({"a": (X, Y), "b": None}, TypeError, r"validation_data\['b'\] is None; leave this set out"),
        ({"a": ValidationSet(data=None)}, TypeError, r"validation_data\['a'\] is None"),
    ],
)
def test_sets_that_cannot_be_meant_are_refused_by_name(data, error, message):
    with pytest.raises(error, match=message):
        named_sets(data, DEFAULT)
