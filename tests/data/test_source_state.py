"""The iterator of a source begins where that of another process stood."""

from __future__ import annotations

import random

import numpy as np
import pytest

from overlap_train._checkpoint.attributes import DataState
from overlap_train._data.pass_state import begun_at, state_at


@pytest.fixture(autouse=True)
def seeds():
    state = random.getstate()
    yield
    random.setstate(state)


class Counted:
    """An iterator as `_keras.data_sources` makes them, and the dataset that begins one."""

    def __init__(self, count=0, state=None):
        self.count, self.state, self.refused = count, state, None

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state

    def begin_at(self, count, state):
        if self.refused is not None:
            raise self.refused
        return Counted(count, state)


def test_an_iterator_begins_where_another_stood_with_the_global_seeds():
    state = state_at(Counted(3, {"next_index": 3}), 3, DataState)
    expected = random.random(), np.random.rand()
    begun = begun_at(Counted(), 3, state, DataState)
    assert (begun.count, begun.state) == (3, {"next_index": 3})
    assert (random.random(), np.random.rand()) == expected


@pytest.mark.parametrize(
    ("iterator", "reason"),
    [(None, "there is none"), (Counted(4, {}), "drawn ahead"), (Counted(3, object()), "not to be stored")],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_state_that_does_not_tell_the_position_is_none(iterator, reason):
    assert state_at(iterator, 3, DataState) is None


@pytest.mark.parametrize("error", [ValueError(), TypeError(), KeyError(), AttributeError()])
def test_a_source_that_refuses_a_state_leaves_the_seeds_alone(error):
    state = state_at(Counted(3, {}), 3, DataState)
    other = Counted()
    other.refused = error
    expected = random.random()
    random.setstate(state["python"])
    assert begun_at(other, 3, state, DataState) is None
    assert random.random() == expected
