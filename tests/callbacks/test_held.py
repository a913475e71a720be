"""What an object is to the callback that holds it: a value, data, a part of the training, or unclear."""

from __future__ import annotations

import collections
import csv
import datetime
import enum
import io
import logging
import pathlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._callbacks.given import Given, Known
from overlap_train._callbacks.held import met
from overlap_train._inspection.code import Unclear

MODEL = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


class Own:
    pass


class OwnList(list):
    pass


class OwnArray(np.ndarray):
    pass


OBJECTS = np.dtype([("row", "i4"), ("thing", "O")])


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize("value", [None, 3, "text", 1 + 2j, Level.LOW, len, Own, np, Own()])
@pytest.mark.parametrize("fixed", [True, False])
def test_what_is_at_hand_is_known(value, fixed):
    assert met(value, fixed=fixed) == Known(value, fixed)


@pytest.mark.parametrize(
    "array", [np.zeros(2).view(OwnArray), np.zeros(2, OBJECTS)], ids=["own", "of objects"]
)
def test_an_array_that_may_do_more_than_hold_numbers_is_no_data(array):
    found = met(array)
    assert isinstance(found, Known)
    assert found.value is array


@pytest.mark.parametrize(
    "value",
    [
        MODEL,
        MODEL.weights[0],
        keras.optimizers.SGD(),
        keras.random.SeedGenerator(1),
        tf.Variable(1.0),
        tf.constant(1.0),
        np.random.default_rng(1),
        tf.data.Dataset.range(2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parts_of_the_training_are_told(value):
    assert met(value) is Given.PART


@pytest.mark.parametrize(
    "value",
    [
        [],
        [1, "a", None],
        {"a": [1, {"b": 2.0}]},
        collections.deque([1], maxlen=3),
        collections.defaultdict(list, a=[1]),
        collections.OrderedDict(a=1),
        np.zeros(3),
        np.array(["a"]),
        threading.Lock(),
        threading.RLock(),
        io.StringIO(),
        csv.writer(io.StringIO()),
        datetime.datetime(2020, 1, 1),
        pathlib.Path("a"),
        logging.Formatter(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_only_keeps_what_it_is_given_is_data(value):
    assert met(value) is Given.DATA


@pytest.mark.parametrize(
    "value", [[MODEL], {"a": (MODEL, 1)}, [[{"deep": MODEL}]], {MODEL.name: [1], "m": {0: MODEL}}]
)
def test_a_container_of_a_part_is_a_part(value):
    assert met(value) is Given.PART


@pytest.mark.parametrize(
    "value",
    [
        [Own()],
        [1, [Own()]],
        {Own(): 1},
        [len],
        [OwnList()],
        collections.defaultdict(Own),
        [[[[[1]]]]],
    ],
    ids=["own", "nested", "key", "function", "own list", "factory", "too deep"],
)
def test_a_container_of_what_may_do_anything_is_unclear(value):
    with pytest.raises(Unclear):
        met(value)


def test_a_container_that_holds_itself_is_unclear():
    value = []
    value.append(value)
    with pytest.raises(Unclear):
        met(value)


@pytest.mark.parametrize("at", [0, -1])
def test_both_ends_of_a_long_container_are_looked_at(at):
    value = [0.0] * 5000
    assert met(value) is Given.DATA
    value[at] = Own()
    with pytest.raises(Unclear):
        met(value)


def test_a_keeper_that_has_been_handed_code_of_the_users_is_known_as_what_it_is():
    class Handler(logging.Handler):
        def emit(self, record):
            MODEL.trainable = False

    logger = logging.Logger("apart")
    assert met(logger) is Given.DATA
    logger.addHandler(Handler())
    assert met(logger) == Known(logger)


def test_an_own_list_and_an_array_of_objects_are_known_as_what_they_are():
    for value in (OwnList(), np.array([None], dtype=object)):
        found = met(value)
        assert isinstance(found, Known)
        assert found.value is value
