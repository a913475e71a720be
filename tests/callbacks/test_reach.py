"""What code can get hold of: objects that are found, and ends of the search."""

from __future__ import annotations

import functools
import random
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._callbacks.reach import reached

HIDDEN = random.Random(1)
LATER = types.ModuleType("users_module")
LATER.generator = random.Random(2)


class Holder:
    __slots__ = ("inner", "other")

    def __init__(self, inner):
        self.inner = inner


class Method:
    def draw(self):
        return HIDDEN.random()


class Inherits(Method):
    pass


class Callback(keras.callbacks.Callback):
    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


def named():
    return [HIDDEN.random() for _ in range(3)]


def calls_named():
    return named()


def inside():
    return (lambda: HIDDEN)()


def as_default(generator=HIDDEN):
    return generator


def closes_over(generator):
    def draw():
        return generator.random()

    return draw


PLACES = {
    "itself": HIDDEN,
    "attribute": Callback(generator=HIDDEN),
    "slot": Holder(HIDDEN),
    "list in a dict": {"a": [1, [HIDDEN]]},
    "name": named,
    "name in a function that is called": calls_named,
    "name in a function inside": inside,
    "default": as_default,
    "closure": closes_over(HIDDEN),
    "partial": functools.partial(print, HIDDEN),
    "bound method": Holder(HIDDEN).__init__.__func__ and Method().draw,
    "class of the object": Inherits(),
    "function given to a stock callback": keras.callbacks.LambdaCallback(on_epoch_end=closes_over(HIDDEN)),
}


@pytest.mark.parametrize("place", PLACES)
def test_found(place):
    assert reached([PLACES[place]], random.Random) == [HIDDEN]


def test_found_by_the_name_of_an_attribute_of_the_users_module(monkeypatch, tmp_path):
    LATER.__file__ = str(tmp_path / "users_module.py")
    monkeypatch.setitem(__import__("sys").modules, "users_module", LATER)
    monkeypatch.setitem(globals(), "users_module", LATER)
    assert reached([lambda: users_module.generator], random.Random) == [LATER.generator]  # noqa: F821


def test_a_dataset_that_a_model_of_the_users_holds():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.samples = tf.data.Dataset.range(3)
    assert reached([Callback(_model=model)], tf.data.Dataset) == [model.samples]


@pytest.mark.parametrize(
    "thing", [3, "text", None, np.zeros(3), tf.zeros(3), keras.callbacks.CSVLogger("x"), np, [range(9)]]
)
def test_nothing_is_found_where_there_is_nothing(thing):
    assert reached([thing], random.Random) == []


def test_of_a_long_list_the_first_items_are_looked_at_and_no_object_twice():
    long = [None] * 5_000_000
    around = [long, long]
    around.append(around)
    assert reached([around], random.Random) == []


def test_who_holds_too_much_reaches_no_further():
    many = [[Holder(number)] for number in range(900)]
    deep = [[list(many) for _ in range(900)], HIDDEN]
    assert len(reached([[many, deep]], Holder)) <= 900
