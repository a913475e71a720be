"""States of callbacks go through the arrays and the JSON of a checkpoint and come back."""

from __future__ import annotations

import functools
import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings

from overlap_train._callbacks.packing import pack, unpack
from overlap_train._callbacks.state import capture, restore_all
from overlap_train.errors import CheckpointCorruptError
from tests.callbacks.strategies import VALUES


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
        with pytest.raises(CheckpointCorruptError, match="makes no sense"):
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
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_a_packed_value_that_no_state_packs_is_corrupt(value):
    arrays = {"text": np.array(["a"]), "matrix": np.zeros((2, 2))}
    with pytest.raises(CheckpointCorruptError, match="makes no sense"):
        unpack(arrays, [{"kind": "a", "values": {"x": value}, "left_out": []}])


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
