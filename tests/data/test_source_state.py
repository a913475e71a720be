"""The state of a source goes into plain values and comes back in another object of its kind."""

from __future__ import annotations

import random

import numpy as np
import pytest

from overlap_train._data import source_state
from overlap_train._data.source_state import SourceState, begun_at, state_at


class Source:
    def __init__(self):
        self.files = [f"{number}.png" for number in range(5)]
        self.rng = np.random.default_rng(1)
        self.old = np.random.RandomState(2)
        self.python = random.Random(3)
        self.order = np.arange(6)
        self.nested = {"seen": {1, 2}, "pairs": [(1, "a"), (2, None)]}
        self.lock = object()

    def turn(self):
        self.rng.shuffle(self.order)
        self.nested["seen"].add(self.python.randrange(99))
        self.files = self.files[::-1]
        return self.rng.random(), self.old.uniform(), self.python.random(), self.order.tolist(), self.nested


@pytest.fixture(autouse=True)
def seeds():
    state = random.getstate(), np.random.get_state()
    yield
    random.setstate(state[0])
    np.random.set_state(state[1])


def test_another_source_goes_on_where_the_first_stood():
    first, second = Source(), Source()
    kept, taker = SourceState(first), SourceState(second)
    first.turn()
    state = kept.take()
    expected = repr(first.turn()), random.random(), np.random.rand()
    assert taker.put_back(state) == []
    assert (repr(second.turn()), random.random(), np.random.rand()) == expected


def test_what_has_not_changed_is_not_in_it():
    source = Source()
    kept = SourceState(source)
    source.order[0] = 9
    state = kept.take()
    assert list(state["attributes"]) == ["order"]
    assert "files" in state["unchanged"]
    source.order[0] = 5
    assert state["attributes"]["order"][0] == 9


def test_what_cannot_be_taken_is_left_out_and_left_alone():
    source = Source()
    kept, lock = SourceState(source), source.lock
    assert kept.left_out == ["lock"]
    kept.put_back(kept.take())
    assert source.lock is lock


def test_what_is_another_from_the_start_is_named():
    first, second = Source(), Source()
    second.files = ["other.png"]
    state = SourceState(first).take()
    assert SourceState(second).put_back(state) == ["files"]
    assert second.files == ["other.png"]


@pytest.mark.parametrize(
    "change", [{"attributes": {"rng": {"bit_generator": "other"}}}, {"python": 3}, {"numpy": ()}]
)
def test_a_state_that_makes_no_sense_is_an_error(change):
    state = SourceState(Source()).take()
    with pytest.raises((TypeError, ValueError, LookupError)):
        SourceState(Source()).put_back({**state, **change})


def test_a_container_that_holds_itself_is_left_out():
    source = Source()
    source.nested["self"] = source.nested
    assert "nested" in SourceState(source).left_out


def test_a_source_without_attributes_has_the_global_seeds():
    kept = SourceState(None)
    state = kept.take()
    expected = random.random(), np.random.rand()
    kept.put_back(state)
    assert (random.random(), np.random.rand()) == expected


class Counted:
    """An iterator as `_keras.grain_data` makes them, and the dataset that begins one."""

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
    state = state_at(Counted(3, {"next_index": 3}), 3)
    expected = random.random(), np.random.rand()
    begun = begun_at(Counted(), 3, state)
    assert (begun.count, begun.state) == (3, {"next_index": 3})
    assert (random.random(), np.random.rand()) == expected


@pytest.mark.parametrize(
    ("iterator", "reason"),
    [(None, "there is none"), (Counted(4, {}), "drawn ahead"), (Counted(3, object()), "not to be stored")],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_state_that_does_not_tell_the_position_is_none(iterator, reason):
    assert state_at(iterator, 3) is None


@pytest.mark.parametrize("error", [ValueError(), TypeError(), KeyError(), AttributeError()])
def test_a_source_that_refuses_a_state_leaves_the_seeds_alone(error):
    state = state_at(Counted(3, {}), 3)
    other = Counted()
    other.refused = error
    expected = random.random()
    random.setstate(state["python"])
    assert begun_at(other, 3, state) is None
    assert random.random() == expected


@pytest.mark.parametrize("rows", [1, 4, 5, 400])
def test_a_large_array_is_told_by_rows_over_all_of_it(rows, monkeypatch):
    monkeypatch.setattr(source_state, "_DIGEST_BYTES", 64)
    array = np.arange(2.0 * rows).reshape(rows, 2)  # 16 bytes a row
    taken = source_state.rows_that_tell(array)
    assert len(taken) == min(rows, 4)
    np.testing.assert_array_equal(taken[[0, -1]], array[[0, -1]])
    assert len(np.unique(taken[:, 0])) == len(taken)


@pytest.mark.parametrize("array", [np.float64(3).reshape(()), np.zeros((0, 2)), np.zeros((9, 0))])
def test_arrays_without_rows_to_choose_from_are_taken_whole(array):
    assert source_state.rows_that_tell(array).shape == array.shape
