"""One state of a container or of memory is told from another."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from overlap_train._inspection.reads import state_of


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
