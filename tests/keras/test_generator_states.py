"""What NumPy and Python would take unseen, and index memory by, is refused; what they return is taken."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from overlap_train._keras.randomness import (
    BIT_GENERATORS,
    require_numpy_state,
    require_python_state,
    require_seeds,
)


def drawn(name):
    bits = getattr(np.random, name)(3)
    np.random.Generator(bits).random(dtype=np.float32)  # which leaves half of what was drawn
    return bits.state


@pytest.mark.parametrize("name", BIT_GENERATORS)
def test_what_numpy_returns_is_taken(name):
    assert require_numpy_state(drawn(name)) == name
    legacy = np.random.RandomState(getattr(np.random, name)(3))
    legacy.standard_normal()
    assert require_numpy_state(legacy.get_state(legacy=False), legacy=True) == name


def test_the_tuple_of_earlier_releases_is_taken():
    assert require_numpy_state(np.random.RandomState(1).get_state(), legacy=True) == "MT19937"


OUT_OF_RANGE = [-400_000_000, -1, 625, 400_000_000, 2**70, 1.0, "1", None, True, np.arange(3)]


@pytest.mark.parametrize("value", OUT_OF_RANGE, ids=str)
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("MT19937", "pos"),
        *(("Philox", part) for part in ("buffer_pos", "has_uint32")),
        *((name, "has_uint32") for name in ("PCG64", "PCG64DXSM", "SFC64")),
    ],
)
def test_a_position_that_is_out_of_range_is_refused(name, part, value):
    state = copy.deepcopy(drawn(name))
    (state["state"] if part == "pos" else state)[part] = value
    with pytest.raises(ValueError, match="is out of range"):
        require_numpy_state(state)


@pytest.mark.parametrize(
    ("name", "part"),
    [("MT19937", "key"), ("Philox", "counter"), ("Philox", "key"), ("SFC64", "state"), ("PCG64", "state")],
)
@pytest.mark.parametrize(
    "value", [range(1 << 40), [0] * 4, np.zeros(3, np.uint64), np.zeros((4, 0), np.uint64), 2**128, -1, "a"]
)
def test_words_of_another_kind_are_refused(name, part, value):
    state = copy.deepcopy(drawn(name))
    state["state"][part] = value
    with pytest.raises(ValueError, match="is out of range"):
        require_numpy_state(state)


@pytest.mark.parametrize(
    "state",
    [None, 3, "MT19937", range(5), {}, {"bit_generator": "os"}, {"bit_generator": ["PCG64"]}],
    ids=str,
)
def test_what_is_no_state_is_refused(state):
    for legacy in (False, True):
        with pytest.raises((TypeError, ValueError)):
            require_numpy_state(state, legacy=legacy)


@pytest.mark.parametrize("part", ["state", "has_uint32", "more"])
def test_a_state_has_all_of_its_parts_and_no_others(part):
    state = drawn("PCG64")
    if part == "more":
        state["more"] = 1
    else:
        del state[part]
    with pytest.raises(TypeError, match="a state of PCG64"):
        require_numpy_state(state)


def test_a_state_of_pythons_is_taken():
    generator = random.Random(1)
    generator.gauss(0, 1)
    require_python_state(generator.getstate())


@pytest.mark.parametrize(
    "change",
    [
        lambda version, numbers, gauss: (2, numbers, gauss),
        lambda version, numbers, gauss: (3, numbers[:-1], gauss),
        lambda version, numbers, gauss: (3, (*numbers[:-1], 625), gauss),
        lambda version, numbers, gauss: (3, (*numbers[:-1], -1), gauss),
        lambda version, numbers, gauss: (3, (2**32, *numbers[1:]), gauss),
        lambda version, numbers, gauss: (3, range(625), gauss),
        lambda version, numbers, gauss: (3, numbers, "1"),
        lambda version, numbers, gauss: (3, numbers),
    ],
)
def test_another_state_than_pythons_is_refused(change):
    with pytest.raises((TypeError, ValueError)):
        require_python_state(change(*random.Random(1).getstate()))


SEEDS = {"entropy": 2**127, "spawn_key": (1, 2), "pool_size": 4, "n_children_spawned": 3}


@pytest.mark.parametrize("entropy", [None, 0, 2**512, [1, 2**40]], ids=str)
def test_seeds_are_taken(entropy):
    require_seeds({**SEEDS, "entropy": entropy})


@pytest.mark.parametrize(
    "change",
    [
        {"entropy": 1 << 20_000},
        {"entropy": [1] * 10_000},
        {"entropy": -1},
        {"entropy": [[1]]},
        {"entropy": "1"},
        {"entropy": range(1 << 40)},
        {"spawn_key": (1 << 20_000,)},
        {"spawn_key": [1]},
        {"pool_size": 2**40},
        {"pool_size": 4.5},
        {"n_children_spawned": -1},
        {"n_children_spawned": 2**32},
    ],
    ids=lambda change: f"{[*change]}",
)
def test_seeds_that_would_take_for_ever_are_refused(change):
    with pytest.raises((TypeError, ValueError)):
        require_seeds({**SEEDS, **change})
