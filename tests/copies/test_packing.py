"""Copies go through the arrays and the JSON of a checkpoint and come back."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import math
import random

import numpy as np
import pytest

from overlap_train._callbacks.restoring import Restorer
from overlap_train._callbacks.values import Copier, NotPlainError
from overlap_train._checkpoint.packing import pack, unpack
from tests.copies.strategies import packed_and_unpacked, through_json


class Holder:
    pass


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**9000), [10**4500], {10**4500: (1,)}, {2**2000}, 2**1999],
    ids=["long", "negative", "list", "key", "set", "as-digits"],
)
def test_an_integer_may_be_longer_than_python_writes_out(value):
    assert packed_and_unpacked(value) == value


@pytest.mark.parametrize(
    "around", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {"b": [v, 1]}]
)
def test_what_can_be_copied_can_be_read_however_deep(around):
    """Also by a stack that is half used up: a `fit` is called from anywhere."""

    def survives(depth, used):
        if used:
            return survives(depth, used - 1)
        value = functools.reduce(lambda inner, _: around(inner), range(depth), 1.0)
        try:
            return packed_and_unpacked(value) == value
        except NotPlainError:
            return depth > 29

    assert all(survives(depth, 300) for depth in (1, 29, 30, 31, 59, 60, 61, 62, 400))


@pytest.mark.parametrize(("position", "sound"), [(624, True), (625, False), (-1, False), (5 * 10**7, False)])
def test_a_position_outside_of_a_generator_s_numbers_is_refused(position, sound):
    """NumPy would take it without a look, and read other memory there."""
    live = np.random.RandomState(1)
    node = through_json(Copier().copy(np.random.RandomState(2)))
    name, state = node["generator"]
    parts = dict(map(tuple, state["dict"]))
    parts["state"] = {"dict": [*parts["state"]["dict"][:1], ["pos", position]]}
    changed = {"generator": [name, {"dict": [*map(list, parts.items())]}]}
    with contextlib.nullcontext() if sound else pytest.raises(ValueError, match="out of range"):
        Restorer().put(live, changed)


@pytest.mark.parametrize(
    "value", [np.str_(""), np.bytes_(b""), np.str_("a"), np.datetime64("2026-01-01", "D"), np.float64(1)]
)
def test_a_scalar_of_numpy_s_comes_back_as_one(value):
    """The item of an empty text has no size, unlike the array in which it is stored."""
    arrays, _ = pack(value, "here")
    assert [array.itemsize > 0 for array in arrays.values()] == [True]
    back = packed_and_unpacked(value)
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize(
    "items",
    [
        *([0.5, -0.0, math.inf, 1e-320] * 100, list(range(-300, 300)), [2**63] * 300, [2**2000] * 300),
        *([1, 2.5] * 200, [True] * 300, [np.float64(1)] * 300, ["a"] * 300),
    ],
    ids=["floats", "ints", "no int64", "long ints", "both", "bools", "scalars", "texts"],
)
@pytest.mark.parametrize("made", [list, tuple, collections.deque, set], ids=lambda kind: kind.__name__)
def test_a_long_list_comes_back_as_it_was(items, made):
    value = made(items)
    back = packed_and_unpacked(value)
    assert sorted(map(repr, back)) == sorted(map(repr, value))
    assert type(back) is made


def test_the_losses_of_a_million_batches_are_an_array():
    arrays, described = pack([0.125] * 1_000_000, "here")
    assert [array.nbytes for array in arrays.values()] == [8_000_000]
    assert len(json.dumps(described)) < 1000


def test_what_is_held_twice_is_written_once():
    shared = [np.zeros(3)]
    arrays, described = pack([shared, {"x": shared}, (shared, {1: {2}})], "here")
    assert len(arrays) == 1
    first, second, third = unpack(arrays, described)
    assert first is second["x"] is third[0]


def test_much_that_is_shared_is_written_read_and_put_back_at_once():
    value = functools.reduce(lambda inner, _: [inner] * 10, range(50), [])
    assert len(json.dumps(pack(value, "here")[1])) < 20_000
    back = packed_and_unpacked(value)
    assert back[0] is back[1]
    assert back[0][0] is back[1][1]


def test_what_shares_with_what_is_left_out_is_written_whole():
    """Of an attribute that is not plain nothing is kept, so nothing else may refer to it."""
    shared = [1]
    copy = Copier().object(Holder(), {"lost": [shared, object()], "kept": [shared], "again": shared})
    assert copy.lost == ("lost",)
    live = Holder()
    Restorer().attributes(live, dict(copy.attributes), "")
    assert live.kept[0] is live.again == [1]


def test_equal_sets_are_written_alike():
    names = [f"{number}" for number in range(40)]
    for made in (set, lambda each: {(name, 1) for name in each}, frozenset):
        assert pack(made(names), "here") == pack(made(names[::-1]), "here")


# Random generators go on with the numbers that would have come.


MAKERS = {
    "default": lambda: np.random.default_rng(5),
    "seeded by a list": lambda: np.random.default_rng([1, 2**40]),
    **{
        name: lambda name=name: np.random.Generator(getattr(np.random, name)(3))
        for name in ("MT19937", "PCG64DXSM", "Philox", "SFC64")
    },
    "legacy": lambda: np.random.RandomState(3),
    "python": lambda: random.Random(3),
}


def drawn(generator) -> list:
    names = ("random", "standard_normal", "gauss")
    draws = [getattr(generator, name) for name in names if hasattr(generator, name)]
    return [float(draw(*([0, 1] if name == "gauss" else []))) for draw in draws for name in [draw.__name__]]


@pytest.mark.parametrize("made", MAKERS.values(), ids=MAKERS)
def test_the_next_numbers_are_those_that_would_have_come(made):
    generator, live = made(), made()
    drawn(generator)
    node = through_json(Copier().copy(generator))
    expected = [drawn(generator), drawn(generator)]
    assert Restorer().put(live, node) is live  # who shares it goes on with it, too
    assert [drawn(live), drawn(live)] == expected


def test_a_generator_that_has_spawned_is_not_plain():
    """Its next children follow from its seeds, which no state has."""
    generator = np.random.default_rng(1)
    Copier().copy(generator)
    generator.spawn(2)
    with pytest.raises(NotPlainError, match="Generator"):
        Copier().copy(generator)
