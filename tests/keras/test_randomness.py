"""Everybody's random generators, put back, give the numbers that would have come."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras.copies import undisturbed
from overlap_train._keras.randomness import (
    check_random_states,
    random_states,
    set_numpy_state,
    set_random_states,
)


@pytest.fixture(autouse=True)
def left_as_it_was():
    with undisturbed():
        yield


def drawn() -> list[float]:
    return [
        random.gauss(),
        float(np.random.normal()),
        float(tf.random.normal(())),
        float(keras.random.normal(())),
        float(tf.random.get_global_generator().normal(())),
    ]


def test_the_numbers_that_follow_are_the_same():
    keras.utils.set_random_seed(3)
    drawn()
    states = random_states()
    check_random_states(states)
    expected = [drawn(), drawn()]
    keras.utils.set_random_seed(8)
    drawn()
    set_random_states(states)
    assert [drawn(), drawn()] == expected


def test_a_variable_that_somebody_else_restores_is_left_alone():
    keras.utils.set_random_seed(3)
    shared = tf.random.get_global_generator()
    known = {id(shared.state.handle)}
    assert "tensorflow" not in random_states(known)
    states = random_states()
    before = shared.state.numpy()
    shared.normal(())
    set_random_states(states, known)
    assert not np.array_equal(shared.state.numpy(), before)
    set_random_states(states)
    np.testing.assert_array_equal(shared.state.numpy(), before)


@pytest.mark.parametrize(
    "changes",
    [
        {"python": [3, np.zeros(2, np.uint32), None]},
        {"python": random.getstate()},
        {"python": [3, np.zeros((1 << 40, 0), np.uint32), None]},
        {"numpy": {"bit_generator": "os"}},
        {"numpy": {"bit_generator": "PCG64", "state": {"state": "x", "inc": 1}}},
        {"numpy": {"bit_generator": "RandomState", "state": {}}},
        {"eager": [1, 2]},
        {"eager": ["x", random.Random(1).getstate()]},
        {"keras": np.array(["a"])},
        {"keras": range(1 << 40)},
        {"tensorflow": [1, 2, 3]},
        {"numpy": {**np.random.RandomState(1).get_state(legacy=False), "has_gauss": 2}},
        {"eager": [1 << 10_000, [3, np.zeros(625, np.uint32), None]]},
        {"eager": range(2)},
        {"python": range(3)},
    ],
    ids=[
        "few numbers",
        "as Python has it",
        "rows without numbers",
        "another generator",
        "nonsense",
        "no kind",
        "no generator",
        "a text",
        "texts",
        *("a range", "a list", "two halves", "a long seed", "two numbers", "three numbers"),
    ],
)
def test_states_that_are_none_are_told_before_any_is_put_back(changes):
    with pytest.raises((LookupError, TypeError, ValueError)):
        check_random_states({**random_states(), **changes})


@pytest.fixture
def bit_generator():
    before = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(before)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.SFC64, np.random.MT19937])
def test_numpy_draws_from_what_it_drew_from(bit_generator, kind):
    np.random.set_bit_generator(kind(5))
    np.random.normal()
    states = random_states()
    check_random_states(states)
    expected = np.random.normal(size=3)
    for other in (kind, np.random.PCG64DXSM):
        np.random.set_bit_generator(other(7))
        set_random_states(states)
        np.testing.assert_array_equal(np.random.normal(size=3), expected)


def test_a_state_of_earlier_releases_is_that_of_the_generator_that_numpy_begins_with(bit_generator):
    np.random.seed(3)
    state, expected = np.random.get_state(), np.random.normal()
    np.random.set_bit_generator(np.random.PCG64(1))
    set_numpy_state(state)
    assert np.random.normal() == expected


def test_a_state_of_another_shape_is_refused():
    tf.random.get_global_generator()
    with pytest.raises(ValueError, match="a state of"):
        set_random_states({**random_states(), "tensorflow": np.zeros(9, np.int64)})
