"""Copies of what callbacks keep are put back where they were, or not at all."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from overlap_train._copies.generators import GeneratorValue
from overlap_train._copies.kept import KeptState
from overlap_train._copies.objects import NotPutBackError, attributes_of
from overlap_train._copies.packing import pack, unpack
from overlap_train._copies.placing import Placing
from overlap_train._copies.values import copied
from tests.copies.strategies import VALUES


class Box:
    def __init__(self, content):
        self.content = content


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float = 0.5


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


def copy(value):
    return copied(value, look_into=attributes_of)


def put_back(live, kept, classes=lambda name: None, **told):
    placing = Placing(**told)
    placing.turn_to(classes)
    placing.offer(live, kept)
    placing.settle()
    placing.require(kept)
    return placing.put(kept)


@given(value=VALUES, live=VALUES)
@settings(max_examples=60, deadline=None)
def test_putting_back_gives_the_value_and_spares_the_copy(value, live):
    kept = copied(value)
    assert put_back(live, kept) == value
    assert kept == value


def test_what_stands_in_a_live_container_is_changed_itself():
    live = [np.random.default_rng(1), Box(1), {"a": [1]}]
    generator, box, inner = live[0], live[1], live[2]["a"]
    kept = copy([np.random.default_rng(2), Box(2), {"a": [2]}])
    assert isinstance(kept[0], GeneratorValue)
    new = put_back(live, kept)
    assert new is live
    assert (new[0], new[1], new[2]["a"]) == (generator, box, inner)
    assert (box.content, inner) == (2, [2])
    assert generator.random() == np.random.default_rng(2).random()


def test_what_is_not_there_is_new_each_time():
    kept = copy([[1], Box([2])])
    first, second = (put_back(None, kept, lambda name: Box) for _ in range(2))
    assert first[0] == second[0] == [1]
    assert first[0] is not second[0]
    assert first[1].content is not second[1].content


def test_a_deque_of_another_length_is_a_new_one():
    live = collections.deque([1], maxlen=2)
    new = put_back(live, collections.deque([1, 2, 3], maxlen=5))
    assert (new is live, new.maxlen) == (False, 5)


class Window(collections.deque):
    pass


def test_a_deque_with_a_class_keeps_its_length():
    new = put_back(None, copy(Window([1, 2, 3], maxlen=3)), lambda name: Window)
    assert (type(new), new.maxlen, list(new)) == (Window, 3, [1, 2, 3])


def test_another_object_takes_the_place_of_a_container_with_a_factory():
    new = put_back(collections.defaultdict(list), copy(Box(3)), lambda name: Box)
    assert (type(new), new.content) == (Box, 3)


def test_keys_that_are_members_of_an_enumeration_find_what_is_live():
    live = {Phase.WARM: tf.Variable(0.0), (Phase.MAIN, 1): keras.metrics.Mean()}
    other = {Phase.WARM: tf.Variable(2.0), (Phase.MAIN, 1): keras.metrics.Mean()}
    other[Phase.MAIN, 1].update_state([3.0])
    variable = live[Phase.WARM]
    assert put_back(live, copy(other)) is live
    assert live[Phase.WARM] is variable
    assert float(variable) == 2.0
    assert float(live[Phase.MAIN, 1].result()) == 3.0


def test_a_key_that_is_an_object_finds_the_one_in_its_row():
    first, second = Box(1), Box(2)
    live = {first: keras.metrics.Mean(), second: keras.metrics.Mean()}
    other = {Box(5): keras.metrics.Mean(), Box(6): keras.metrics.Mean()}
    for number, metric in enumerate(other.values()):
        metric.update_state([float(number)])
    put_back(live, copy(other))
    assert list(live) == [first, second]
    assert (first.content, second.content) == (5, 6)
    assert [float(metric.result()) for metric in live.values()] == [0.0, 1.0]


@pytest.mark.parametrize("names", [("current", "phases"), ("phases", "current")])
@pytest.mark.parametrize("made", [Box, lambda content: keras.metrics.Mean()], ids=["object", "metric"])
def test_one_of_several_is_the_one_that_it_was(names, made):
    """Whichever of them it is when the training begins, and in whatever order they are looked at."""

    def holder(which):
        phases = [made(0), made(1)]
        parts = {"phases": phases, "current": phases[which]}
        box = Box(None)
        box.__dict__ = {name: parts[name] for name in names}
        return box

    there, live = holder(1), holder(0)
    first, second = live.phases
    if made is Box:
        there.phases[1].content = "second"
    else:
        there.current.update_state([4.0])
    put_back(live, copy(there))
    assert live.phases == [first, second]
    assert live.current is second
    assert (first.content, second.content) == (0, "second") if made is Box else float(second.result()) == 4.0


def test_a_constant_that_two_begin_with_is_not_changed():
    constant = Settings()
    live = [constant, constant]
    put_back(live, copy([Settings(0.25), Settings()]))
    assert constant.rate == 0.5
    assert live == [Settings(0.25), Settings(0.5)]


def test_arrays_and_generators_are_shared_again():
    array, generator = np.arange(2.0), np.random.default_rng(1)
    new = put_back([None, None], copy([array, {"a": array}, generator, (generator,)]))
    assert new[0] is new[1]["a"]
    assert new[2] is new[3][0]


def test_a_place_is_looked_for_before_anything_is_put_back():
    def require(live, kept):
        placing = Placing()
        placing.offer(live, kept)
        placing.settle()
        placing.require(kept)

    kept = copy(Box([keras.Variable([1.0])]))
    with pytest.raises(NotPutBackError, match="is not found"):
        require(None, kept)
    require(Box([keras.Variable([2.0])]), kept)
    with pytest.raises(ValueError, match="it was a variable"):
        require(Box([3]), kept)
    with pytest.raises(ValueError, match=r"one of \(2,\)"):
        require(Box([keras.Variable([1.0, 2.0])]), kept)


def test_a_file_that_tells_nothing_of_sharing_has_a_variable_under_each_of_its_names():
    """As those of earlier releases."""

    def values(start):
        metric, variable = keras.metrics.Mean(), tf.Variable(start)
        metric.update_state([start])
        box, seen = Box(start), [start]
        plain = {"boxes": [box, Box(start)], "box": box, "seen": seen, "again": (seen,)}
        return {"metric": metric, "by_name": {"m": metric}, "variables": [variable, variable], **plain}

    arrays, described = pack([KeptState("a", {"x": copy(values(3.0))})], sharing=False)
    live = values(1.0)
    (state,) = unpack(arrays, described)
    assert not state.tells_sharing
    put_back(live, state.values["x"], tells_sharing=False)
    assert live["box"] is live["boxes"][0]
    assert live["seen"] is live["again"][0]
    assert (live["box"].content, live["boxes"][1].content, live["seen"]) == (3.0, 3.0, [3.0])
    assert live["metric"] is live["by_name"]["m"]
    assert live["variables"][0] is live["variables"][1]
    assert (float(live["metric"].result()), float(live["variables"][0])) == (3.0, 3.0)


def test_what_is_held_over_and_over_is_looked_at_once():
    """Else a small file would take as long as it says."""
    kept = functools.reduce(lambda value, _: [value, value], range(55), [])
    assert put_back(kept, copy(kept)) is kept
    new = put_back([], copy(kept))
    assert new[0] is new[1]
