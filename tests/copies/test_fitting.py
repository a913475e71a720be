"""Which live object takes a copy, and which copies are of one object."""

from __future__ import annotations

import collections

import keras
import numpy as np
import pytest

from overlap_train._copies.fitting import are_equal, has_to_be_there, takes
from overlap_train._copies.objects import ObjectValue, attributes_of
from overlap_train._copies.values import copied


class Box:
    def __init__(self, content):
        self.content = content


def copy(value):
    return copied(value, look_into=attributes_of)


@pytest.mark.parametrize(
    ("live", "value", "takes_it"),
    [
        ([1], [2], True),
        ([1], {1}, False),
        (collections.deque([1], 3), collections.deque([2], 3), True),
        (collections.deque([1], 3), collections.deque([2], 4), False),
        (Box(1), Box(2), True),
        (Box(1), 3, False),
        (keras.Variable([1.0]), keras.Variable([2.0]), True),
        (keras.Variable([1.0]), keras.Variable([2.0, 3.0]), False),
        (np.random.default_rng(1), np.random.default_rng(2), True),
        (np.random.default_rng(1), np.random.RandomState(2), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_live_object_takes_what_is_of_its_kind(live, value, takes_it):
    assert takes(live, copy(value)) == takes_it


def test_copies_are_equal_part_by_part():
    first, second = (copy([Box(np.arange(3)), {"a": (1, 2.5)}]) for _ in range(2))
    assert are_equal(first, second)
    assert not are_equal(first, copy([Box(np.arange(4)), {"a": (1, 2.5)}]))
    assert not are_equal([1], (1,))


def test_what_cannot_be_made_has_to_be_there():
    assert has_to_be_there(ObjectValue("a:B", partial=True))
    assert has_to_be_there(copy(keras.Variable(1.0)))
    assert not has_to_be_there(copy(Box(1)))
