"""What a variable may hold where ways through code meet: one thing, one of several, or nobody knows."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train._callbacks.flow import (
    UNCLEAR,
    Frame,
    either,
    equal,
    identical,
    item_of,
    merged,
    same,
    truth,
)
from overlap_train._callbacks.given import Given, Known
from overlap_train._inspection.code import Unclear

DATA, PART, ANSWER, LATER = Given.DATA, Given.PART, Given.ANSWER, Given.LATER
MODEL = keras.Sequential()


class Own:
    pass


def known(value, *, fixed=True):
    return Known(value, fixed)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (known(3), True),
        (known(0), False),
        (known(None), False),
        (known("a"), True),
        (known(3, fixed=False), None),
        (known([]), None),
        (known(Own()), None),
        (DATA, None),
        (ANSWER, None),
        (UNCLEAR, None),
    ],
)
def test_only_a_simple_value_that_stays_is_known_to_be_true_or_false(value, expected):
    assert truth(value) is expected


def test_one_of_equals_is_what_they_are():
    owned = known(Own())
    assert either([DATA]) is DATA
    assert either([PART, PART]) is PART
    assert either([owned, owned, owned]) is owned
    assert either([known(None), known(None)]) == known(None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([known(1), known(2)], DATA),
        ([DATA, ANSWER], DATA),
        ([DATA, known("a"), PART], PART),
        ([known(np.float64(1)), DATA], DATA),
    ],
)
def test_one_of_several_that_cannot_reach_the_training_is_data(values, expected):
    assert either(values) is expected


@pytest.mark.parametrize(
    "values",
    [
        [known(Own()), DATA],
        [known(Own()), known(Own())],
        [UNCLEAR, DATA],
        [known(keras.callbacks.History()), DATA],
    ],
)
def test_things_that_are_too_different_are_unclear(values):
    with pytest.raises(Unclear):
        either(values)


def test_variables_are_merged_one_by_one():
    left = {"a": known(1), "b": known(Own()), "c": DATA}
    right = {"a": known(2), "b": DATA, "d": PART}
    assert merged([left, right]) == {"a": DATA, "b": UNCLEAR, "c": DATA, "d": PART}
    assert merged([]) == {}


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ({"a": DATA}, {"a": DATA}, True),
        ({"a": DATA}, {"a": PART}, False),
        ({"a": DATA}, {"b": DATA}, False),
        ({"a": known(MODEL)}, {"a": known(MODEL)}, True),
        ({"a": known(MODEL)}, {"a": known(MODEL, fixed=False)}, False),
        ({"a": known(Own())}, {"a": known(Own())}, False),
    ],
)
def test_variables_hold_the_same(left, right, expected):
    assert same(left, right) is expected


@pytest.mark.parametrize(
    ("value", "item"),
    [
        ((), DATA),
        ((known(1), DATA), DATA),
        ((DATA, PART), PART),
        (DATA, DATA),
        (LATER, DATA),
        (PART, PART),
        (known("text"), DATA),
    ],
)
def test_what_is_in_a_value(value, item):
    assert item_of(value) is item


@pytest.mark.parametrize("value", [known(Own()), UNCLEAR, known(keras.callbacks.History())])
def test_what_is_in_an_object_of_the_users_cannot_be_told(value):
    with pytest.raises(Unclear):
        item_of(value)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (known(None), known(None), True),
        (known(None), known(3), False),
        (known(MODEL), known(None), False),
        (known(MODEL), known(MODEL), True),
        (known(1000), known(2000), None),
        (known(None), DATA, None),
        (known(None), known(None, fixed=False), None),
    ],
)
def test_whether_two_are_one_object(left, right, expected):
    assert identical(left, right) is expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (known(1), known(1.0), True),
        (known("a"), known("b"), False),
        (known(1), known(1, fixed=False), None),
        (LATER, known(0), False),
        (known(-1), LATER, False),
        (LATER, known(1), None),
        (LATER, known(False), None),
        (DATA, known(0), None),
    ],
)
def test_whether_two_are_equal(left, right, expected):
    assert equal(left, right) is expected


def test_variables_are_what_they_may_be_wherever_code_is_left():
    frame = Frame(len, {"a": known(1)})
    frame.begin_trail()
    frame.bind("b", PART)
    frame.begin_trail()
    frame.bind("a", DATA)
    assert frame.end_trail() == {"a": DATA, "b": PART}
    frame.bind("b", DATA)
    assert frame.end_trail() == {"a": DATA, "b": PART}
    assert frame.names == {"a": DATA, "b": DATA}
