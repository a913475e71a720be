"""States of callbacks go through the arrays and the JSON of a checkpoint and come back."""

from __future__ import annotations

import collections
import functools
import json
import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings

from overlap_train._callbacks.state import capture, capture_all, restore_all
from overlap_train._copies.packing import pack, unpack
from overlap_train.errors import CheckpointCorruptError
from tests.copies.strategies import VALUES


@given(value=VALUES)
@settings(max_examples=60, deadline=None)
def test_any_value_survives_packing(value):
    callback = keras.callbacks.Callback()
    callback.value = value
    arrays, described = pack([capture(callback)])
    (state,) = unpack(arrays, json.loads(json.dumps(described)))
    assert state.values["value"] == value
    assert type(state.values["value"]) is type(value)


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**9000), [10**4500], {10**4500: (1,)}, {2**2000}, 2**1999],
    ids=["long", "negative", "list", "key", "set", "as-digits"],
)
def test_an_integer_may_be_longer_than_python_writes_out(value):
    callback = keras.callbacks.Callback()
    callback.value = value
    arrays, described = pack([capture(callback)])
    (state,) = unpack(arrays, json.loads(json.dumps(described)))
    assert state.values["value"] == value


@pytest.mark.parametrize(
    "around", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {"b": [v, 1]}]
)
def test_what_can_be_copied_can_be_read_however_deep(around):
    """Also by a stack that is half used up: a `fit` is called from anywhere."""

    def survives(depth, used):
        if used:
            return survives(depth, used - 1)
        callback = keras.callbacks.Callback()
        callback.value = functools.reduce(lambda value, _: around(value), range(depth), 1.0)
        arrays, described = pack([capture(callback)])
        (state,) = unpack(arrays, json.loads(json.dumps(described)))
        return "value" in state.left_out or state.values["value"] == callback.value

    assert all(survives(depth, 300) for depth in (1, 29, 30, 31, 59, 60, 61, 62, 400))


def test_packed_values_that_make_no_sense_are_corrupt():
    for described in (
        [{}],
        [{"kind": "a", "values": {"x": {"array": "gone"}}, "left_out": []}],
        3,
        [{"kind": 1}],
    ):
        with pytest.raises(CheckpointCorruptError, match="is invalid"):
            unpack({}, described)


@pytest.mark.parametrize(
    "value",
    [
        {"tensor": "text"},
        {"scalar": "matrix"},
        {"deque": [-1, []]},
        {"deque": [10**30, []]},
        {"set": [[1]]},
        {"dict": [[1, 2, 3]]},
        {"bytes": "xy"},
        {"complex": ["a", "b"]},
        {"array": ["matrix"]},
        {"tuple": [], "set": []},
        [{"tensor": "matrix"}, {"tensor": "matrix"}],
        functools.reduce(lambda inner, _: [inner], range(400), 1),
        {"again": 0},
        {"shared": [0, {"again": 0}]},
        {"shared": [0, 1]},
        {"shared": [0, {"tuple": [1]}]},
        {"shared": [[], []]},
        [{"shared": [0, []]}, {"shared": [0, []]}],
        [{"shared": [0, []]}, {"generator": ["Random", {"again": 0}]}],
        [
            {"shared": [0, functools.reduce(lambda inner, _: [inner], range(200), 1)]},
            functools.reduce(lambda inner, _: [inner], range(200), {"again": 0}),
        ],
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_a_packed_value_that_no_state_packs_is_corrupt(value):
    arrays = {"text": np.array(["a"]), "matrix": np.zeros((2, 2))}
    for sharing in (True, False):
        with pytest.raises(CheckpointCorruptError, match="is invalid"):
            unpack(arrays, [{"kind": "a", "values": {"x": value}, "left_out": [], "sharing": sharing}])


@pytest.mark.parametrize(
    "value", [np.str_(""), np.bytes_(b""), np.str_("a"), np.datetime64("2026-01-01", "D")]
)
def test_a_scalar_of_text_or_time_is_restored_from_disk(value):
    """The item of an empty text has no size, unlike the array in which it is stored."""
    remembering = keras.callbacks.Callback()
    remembering.value = value
    arrays, described = pack([capture(remembering)])
    assert [array.itemsize > 0 for array in arrays.values()] == [True]
    other = keras.callbacks.Callback()
    other.value = None
    restore_all([other], unpack(arrays, described))
    assert other.value == value
    assert type(other.value) is type(value)


@pytest.mark.parametrize(
    "items",
    [
        *([0.5, -0.0, math.inf, 1e-320] * 100, list(range(-300, 300)), [2**63] * 300, [2**2000] * 300),
        *([1, 2.5] * 200, [True] * 300, [np.float64(1)] * 300),
    ],
    ids=["floats", "ints", "no int64", "long ints", "both", "bools", "scalars"],
)
@pytest.mark.parametrize("made", [list, tuple, collections.deque, set], ids=lambda kind: kind.__name__)
def test_a_long_list_of_numbers_comes_back_as_it_was(items, made):
    callback = keras.callbacks.Callback()
    callback.value = made(items)
    arrays, described = pack([capture(callback)])
    (state,) = unpack(arrays, json.loads(json.dumps(described)))
    assert list(map(repr, state.values["value"])) == list(map(repr, callback.value))
    assert type(state.values["value"]) is made


def test_the_losses_of_a_million_batches_are_an_array():
    callback = keras.callbacks.Callback()
    callback.losses = [0.125] * 1_000_000
    arrays, described = pack([capture(callback)])
    assert [array.nbytes for array in arrays.values()] == [8_000_000]
    assert len(json.dumps(described)) < 1000


@pytest.mark.parametrize("array", [np.zeros(3, np.float32), np.zeros((2, 2)), np.array(["a"])], ids=str)
def test_a_long_list_of_something_else_is_corrupt(array):
    with pytest.raises(CheckpointCorruptError, match="is invalid"):
        unpack({"a": array}, [{"kind": "a", "values": {"x": {"floats": "a"}}, "left_out": []}])


def test_what_is_held_twice_is_written_once():
    shared = [np.zeros(3)]
    first, second = keras.callbacks.Callback(), keras.callbacks.Callback()
    first.a, first.b, second.c = shared, {"x": shared}, (shared, 1)
    arrays, described = pack(capture_all([first, second]))
    assert len(arrays) == 1
    states = unpack(arrays, json.loads(json.dumps(described)))
    assert states[0].values["a"] is states[0].values["b"]["x"] is states[1].values["c"][0]


def test_nothing_is_shared_where_that_is_not_told():
    shared = [1]
    callback = keras.callbacks.Callback()
    callback.a, callback.b = shared, shared
    states = capture_all([callback])
    assert unpack(*pack(states, sharing=False), sharing=False)[0].values == {"a": [1], "b": [1]}
    with pytest.raises(CheckpointCorruptError, match="is invalid"):
        unpack(*pack(states), sharing=False)


def test_a_small_file_of_much_that_is_shared_is_read_at_once():
    value = {"shared": [0, []]}
    for number in range(1, 100):
        value = {"shared": [number, [value, *[{"again": number - 1}] * 9]]}
    described = {"kind": "Callback", "values": {"x": value}, "left_out": [], "sharing": True}
    (state,) = unpack({}, [described])
    callback = keras.callbacks.Callback()
    restore_all([callback], [state])
    assert callback.x[0] is callback.x[9]
    assert capture(callback).left_out == ("x",)  # which no training has written: it is too deep
