"""What has been copied is put back into what is there, and what is held in common stays in common."""

from __future__ import annotations

import collections
import copy
import enum
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from overlap_train._copies.restoring import NotPutBackError, Restorer
from overlap_train._copies.values import Copier
from tests.copies.strategies import VALUES, packed_and_unpacked


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


class Meter:
    def __init__(self, name="a"):
        self.name, self.losses, self.phase = name, [], Phase.WARM

    def turn(self):
        self.losses.append(len(self.losses))
        self.phase = Phase.MAIN

    def __eq__(self, other):
        return vars(self) == vars(other)


def moved(value, live):
    """Returns what a value becomes in another process, where `live` is in its place."""
    return Restorer().put(live, packed_and_unpacked(Copier().copy(value)))


@given(value=VALUES, live=VALUES)
@settings(max_examples=60, deadline=None)
def test_any_plain_value_comes_back_whatever_is_there(value, live):
    there = copy.deepcopy(live)
    found = moved(value, there)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("live", "value"),
    [
        ([0], [1, [2]]),
        ({"a": 0}, {"b": 1}),
        ({0}, {1, 2}),
        (collections.deque([0], 3), collections.deque([1, 2], 3)),
        (collections.OrderedDict(b=1), collections.OrderedDict(a=1)),
        (collections.Counter("ab"), collections.Counter("aab")),
        (collections.defaultdict(list, a=[0]), collections.defaultdict(list, a=[1], b=[2])),
        (types.SimpleNamespace(a=1), types.SimpleNamespace(a=[2], b=3)),
        (np.zeros(2), np.ones(2)),
        (Meter("a"), Meter("b")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_there_is_changed_itself(live, value):
    found = moved(value, live)
    assert found is live
    assert np.array_equal(found, value) if isinstance(found, np.ndarray) else found == value


@pytest.mark.parametrize(
    ("live", "value"),
    [
        (np.zeros(3), np.ones(2)),
        (np.zeros(2, "float32"), np.ones(2)),
        (collections.deque([0], 3), collections.deque([1])),
        (None, {"a": [1]}),
    ],
)
def test_what_does_not_fit_is_made_anew(live, value):
    before = copy.deepcopy(live)
    np.testing.assert_equal(moved(value, live), value)
    np.testing.assert_equal(live, before)


def test_what_cannot_be_written_to_stays_and_another_array_takes_its_place():
    live = np.zeros(2)
    live.flags.writeable = False
    assert moved(np.ones(2), live).tolist() == [1, 1]
    assert live.tolist() == [0, 0]


@pytest.mark.parametrize("make", [tf.Variable, keras.Variable])
def test_a_variable_is_assigned(make):
    live = make([0.0, 0.0])
    assert moved({"v": make([1.0, 2.0])}, {"v": live})["v"] is live
    assert live.numpy().tolist() == [1, 2]


def test_a_metric_and_a_generator_of_seeds_go_on():
    mean, seeds = keras.metrics.Mean(), keras.random.SeedGenerator(3)
    mean.update_state([1.0, 3.0])
    live = [keras.metrics.Mean(), keras.random.SeedGenerator(4)]
    seeds.next()
    moved([mean, seeds], live)
    assert float(live[0].result()) == 2.0
    np.testing.assert_array_equal(live[1].next(), seeds.next())


@pytest.mark.parametrize(
    ("value", "live", "reason"),
    [
        (tf.Variable([1.0]), None, "there is no variable in its place"),
        (
            tf.Variable([1.0]),
            tf.Variable([1.0, 2.0]),
            r"it was a variable of \(1,\) float32, and now it is one of \(2,\) float32",
        ),
        (Meter(), None, "there is no Meter in its place"),
        (Meter(), object(), "there is no Meter in its place"),
        (Phase.MAIN, enum.Enum("Phase", ["OTHER"]).OTHER, "a Phase has no such member"),
    ],
)
def test_what_the_file_does_not_say_how_to_make_stays(value, live, reason):
    with pytest.raises(NotPutBackError, match=reason):
        moved(value, live)


def test_attributes_that_cannot_be_put_back_are_named_and_the_others_are_put_back():
    source, target = Meter("b"), Meter("a")
    source.inner, source.later, target.inner = Meter("c"), 5, object()
    target.losses.append(9)
    state = packed_and_unpacked(Copier().copy(source))
    restorer = Restorer()
    restorer.attributes(target, {**state.attributes, "turn": 3, "__class__": 4}, "Meter")
    assert (target.name, target.losses, target.later) == ("b", [], 5)
    assert restorer.stay == [
        "Meter.inner (its place holds a value of type object)",
        "Meter.turn (it is no attribute)",
        "Meter.__class__ (it is no attribute)",
    ]
    assert callable(target.turn)


def test_what_has_been_opened_since_stays():
    source, target = Meter(), Meter()
    source.file, target.file = None, iter([1])
    there = target.file
    Restorer().attributes(target, Copier().copy(source).attributes, "Meter")
    assert target.file is there


def test_what_is_held_in_common_is_again_and_what_had_parted_is_parted():
    board = {"turns": [1], "seen": []}
    found = moved([board["turns"], board], [(live := {"turns": [], "seen": [0]})["turns"], live])
    assert found[0] is found[1]["turns"]
    assert found[1] is live
    common = [0]
    assert moved([[1], [2]], [common, common]) == [[1], [2]]
    later = [1]
    first, second = moved([later, {"a": later}], [None, {}])
    assert first is second["a"]


def test_a_copy_can_be_put_back_again_and_stays_as_it_was():
    state = Copier().copy({"a": [np.zeros(1)]})
    for _ in range(2):
        found = Restorer().put(None, state)
        found["a"][0] += 1
        found["a"].append(2)
    assert (len(state["a"]), state["a"][0].tolist()) == (1, [0])


def test_what_an_object_says_itself_goes_to_its_own_method():
    class Says:
        def __init__(self, n):
            self.n = n

        def get_state(self):
            return {"n": self.n, "rng": np.random.default_rng(self.n)}

        def set_state(self, state):
            self.n, self.drawn = state["n"], state["rng"].random()

    live = Says(1)
    assert moved([Says(5)], [live])[0] is live
    assert (live.n, live.drawn) == (5, np.random.default_rng(5).random())
