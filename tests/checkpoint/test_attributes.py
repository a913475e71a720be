"""What data holds in Python is taken and put back."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._checkpoint import attributes
from overlap_train._checkpoint.attributes import DataState, beside
from tests.callbacks.hooks import through_disk


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
    kept, taker = DataState(first), DataState(second)
    first.turn()
    state = kept.take()
    expected = repr(first.turn()), random.random(), np.random.rand()
    assert taker.put_back(state) == []
    assert (repr(second.turn()), random.random(), np.random.rand()) == expected


def test_what_has_not_changed_is_not_in_it_but_for_generators():
    """Without a seed these stand elsewhere in the next process."""
    source = Source()
    kept = DataState(source)
    source.order[0] = 9
    state = kept.take()
    assert list(state["attributes"].attributes) == ["rng", "old", "python", "order"]
    assert "files" in state["unchanged"]
    source.order[0] = 5
    assert state["attributes"].attributes["order"]["array"][0] == 9


def test_what_cannot_be_taken_is_left_out_and_left_alone():
    source = Source()
    kept, lock = DataState(source), source.lock
    assert kept.left_out == ["lock"]
    kept.put_back(kept.take())
    assert source.lock is lock


def test_what_is_another_from_the_start_is_named():
    first, second = Source(), Source()
    second.files = ["other.png"]
    state = DataState(first).take()
    assert DataState(second).put_back(state) == ["files"]
    assert second.files == ["other.png"]


@pytest.mark.parametrize("rows", [1, 4, 5, 400])
def test_a_large_array_is_told_by_rows_over_all_of_it(rows, monkeypatch):
    monkeypatch.setattr(attributes, "_DIGEST_BYTES", 64)
    array = np.arange(2.0 * rows).reshape(rows, 2)  # 16 bytes a row
    taken = attributes.sampled_rows(array)
    assert len(taken) == min(rows, 4)
    np.testing.assert_array_equal(taken[[0, -1]], array[[0, -1]])
    assert len(np.unique(taken[:, 0])) == len(taken)


class Held:
    """Its state is that of layers, variables and a generator in a list."""

    def __init__(self):
        self.rng = np.random.default_rng(7)
        self.both = [self.rng, self.rng]
        self.flips = keras.layers.RandomFlip(seed=3)
        self.count = tf.Variable(0)

    def turn(self):
        self.count.assign_add(1)
        drawn = [each.random() for each in self.both]
        flipped = self.flips(tf.reshape(tf.range(16.0), (1, 4, 4, 1)), training=True)
        return drawn, self.rng.random(), flipped.numpy().tolist(), int(self.count)


def test_what_a_source_holds_goes_through_a_file_with_what_it_shares(tmp_path):
    first, second = Held(), Held()
    kept, taker = DataState(first), DataState(second)
    assert kept.left_out == []
    for _ in range(3):
        first.turn()
    (state,) = through_disk([kept.take()], tmp_path / "file")
    expected, flips = [first.turn() for _ in range(3)], second.flips
    assert taker.put_back(state) == []
    assert [second.turn() for _ in range(3)] == expected
    assert second.flips is flips
    assert second.both == [second.rng, second.rng]


def test_the_model_that_a_source_looks_at_is_not_its_state():
    class Mines:
        def __init__(self):
            self.model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            self.hardest = [0]

    source = Mines()
    kept = beside(source.model)(source)
    source.model.layers[0].kernel.assign_add([[1.0], [1.0]])
    source.hardest.append(4)
    assert (list(kept.take()["attributes"].attributes), kept.left_out) == (["hardest"], [])


def test_a_value_whose_place_holds_something_else_is_named():
    first, second = Source(), Source()
    first.extra, second.extra = [1], object()
    kept = DataState(first)
    first.extra.append(2)
    assert DataState(second).put_back(kept.take()) == ["extra (its place holds a value of type object)"]
    assert type(second.extra) is object
