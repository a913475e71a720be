"""What code can get hold of: objects that are found, and ends of the search."""

import collections
import functools
import random
import sys
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._inspection import reach
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.reach import reached, reaches

HIDDEN = random.Random(1)


class Holder:
    __slots__ = ("__weakref__", "inner", "other")

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


def as_default(generator=HIDDEN):
    return generator


def closes_over(generator):
    def draw():
        return generator.random()

    return draw


ALIVE = Holder([HIDDEN])
PLACES = {
    "itself": HIDDEN,
    "attribute": Callback(generator=HIDDEN),
    "slot": Holder(HIDDEN),
    "list in a dict": {"a": [1, [HIDDEN]]},
    "deque in an ordered dict": collections.OrderedDict(a=collections.deque([HIDDEN])),
    "behind many others": [[[number] for number in range(5_000)] + [[HIDDEN]]],
    "array of objects": np.array([None, HIDDEN], object),
    "weak reference": Holder(weakref.ref(ALIVE)),
    "weak proxy": Holder(weakref.proxy(ALIVE)),
    "name": named,
    "name in a function that is called": calls_named,
    "default": as_default,
    "closure": closes_over(HIDDEN),
    "partial": functools.partial(print, HIDDEN),
    "class of the object": Inherits(),
    "function given to a stock callback": keras.callbacks.LambdaCallback(on_epoch_end=closes_over(HIDDEN)),
}


@pytest.mark.parametrize("place", PLACES)
def test_found(place):
    assert reached([PLACES[place]], random.Random) == [HIDDEN]


class Helper:
    def __init__(self, inner):
        self.inner = inner


@pytest.mark.parametrize(
    "place",
    [lambda d: d, lambda d: {"train": d}, lambda d: [d], lambda d: Helper([d]), lambda d: lambda: d],
)
def test_what_the_user_has_put_into_a_model(place):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    dataset = tf.data.Dataset.range(3)
    model.put_there = place(dataset)
    assert reached([Callback(_model=model)], tf.data.Dataset) == [dataset]


def test_of_a_model_nothing_is_looked_through_that_keras_has_made():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    assert reached([Callback(_model=model)], random.Random) == []
    assert model in reached([Callback(_model=model)], keras.Model)


def imports(statement):
    names = {"__name__": __name__, "__package__": "users_package"}
    exec(f"def hook():\n    {statement}", names)
    return names["hook"]


@pytest.mark.parametrize(
    "code",
    [
        "return users_package.generator",
        "return users_package.data.generator",
        "from users_package.data import generator; return generator",
        "from .data import generator; return generator",
        "import users_package.data as own; return own.generator",
    ],
)
def test_found_in_the_users_package(code, monkeypatch, tmp_path):
    package, inner = types.ModuleType("users_package"), types.ModuleType("users_package.data")
    package.__file__, inner.__file__ = str(tmp_path / "__init__.py"), str(tmp_path / "data.py")
    package.data, package.generator = inner, random.Random(2)
    inner.generator = package.generator
    monkeypatch.setitem(sys.modules, "users_package", package)
    monkeypatch.setitem(sys.modules, "users_package.data", inner)
    hook = imports(code)
    hook.__globals__["users_package"] = package
    assert reached([hook], random.Random) == [inner.generator]


def test_whether_one_of_some_objects_is_reached():
    target, other = Helper(1), Helper(2)
    assert reaches([{"a": Callback(held=[target])}], [other, target]) is target
    assert reaches([{"a": Callback(held=[target])}], [other]) is None


def annotations(count):
    return {image: [{"box": [1, 2], "shape": [[1, 2], [3, 4]]} for _ in range(10)] for image in range(count)}


def test_too_much_to_look_through_is_said(monkeypatch):
    monkeypatch.setattr(reach, "_MOST_OBJECTS", 1_000)
    with pytest.raises(Unclear):
        reached([annotations(200)], random.Random)
    assert reaches([[HIDDEN], annotations(200)], [HIDDEN]) is HIDDEN, "it lies before that"
