"""States of random generators are taken, put back, and refused where they are none."""

from __future__ import annotations

import copy
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from overlap_train._keras.copies import preserved_state
from overlap_train._keras.randomness import (
    BIT_GENERATORS,
    random_states,
    require_numpy_state,
    set_random_states,
)


def drawn_from(name):
    bits = getattr(np.random, name)(3)
    np.random.Generator(bits).random(dtype=np.float32)  # which leaves half of what was drawn
    return bits.state


@pytest.mark.parametrize("name", BIT_GENERATORS)
def test_a_state_that_numpy_returns_is_taken_and_any_other_refused(name):
    state = drawn_from(name)
    assert require_numpy_state(state) == name
    legacy = np.random.RandomState(getattr(np.random, name)(3))
    legacy.standard_normal()
    assert require_numpy_state(legacy.get_state(legacy=False), legacy=True) == name
    part = next(iter(state["state"]))
    parts = [{**state["state"], part: value} for value in (None, "a", -1, np.zeros(3, np.float32))]
    for bad in (
        None,
        "a",
        -1,
        {**state, "bit_generator": "x"},
        *({**state, "state": p} for p in (3, *parts)),
    ):
        with pytest.raises((TypeError, ValueError)):
            require_numpy_state(bad)


@pytest.mark.parametrize(
    ("name", "part"), [("MT19937", "pos"), ("Philox", "buffer_pos"), ("PCG64", "has_uint32")]
)
def test_a_position_outside_of_the_memory_is_refused(name, part):
    for value in (-400_000_000, -1, 625, 2**70, 1.0, "1", None):
        state = copy.deepcopy(drawn_from(name))
        (state["state"] if part in state["state"] else state)[part] = value
        with pytest.raises((TypeError, ValueError)):
            require_numpy_state(state)


@pytest.fixture(autouse=True)
def left_as_it_was():
    with preserved_state():
        yield


def draws() -> list[float]:
    return [
        random.gauss(),
        float(np.random.normal()),
        float(tf.random.normal(())),
        float(keras.random.normal(())),
        float(tf.random.get_global_generator().normal(())),
    ]


def test_the_numbers_that_follow_are_the_same():
    keras.utils.set_random_seed(3)
    draws()
    states = random_states()
    expected = [draws(), draws()]
    keras.utils.set_random_seed(8)
    draws()
    set_random_states(states)
    assert [draws(), draws()] == expected


def test_a_variable_that_somebody_else_restores_is_left_alone():
    keras.utils.set_random_seed(3)
    shared = tf.random.get_global_generator()
    handle_ids = {id(shared.state.handle)}
    assert "tensorflow" not in random_states(handle_ids)
    states = random_states()
    before = shared.state.numpy()
    shared.normal(())
    set_random_states(states, handle_ids)
    assert not np.array_equal(shared.state.numpy(), before)
    set_random_states(states)
    np.testing.assert_array_equal(shared.state.numpy(), before)
    with pytest.raises(ValueError, match="a state of"):
        set_random_states({**states, "tensorflow": np.zeros(9, np.int64)})


def test_a_seed_that_was_set_meanwhile_is_forgotten(monkeypatch):
    monkeypatch.setattr(context.context(), "_seed", None)
    monkeypatch.delattr(context.context(), "_rng", raising=False)
    with preserved_state():
        keras.utils.set_random_seed(3)
    assert context.global_seed() is None
