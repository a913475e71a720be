"""One state of an object is told from another; whole shared objects are tried in `test_shared_state.py`."""

from __future__ import annotations

import io
import logging
import os
import random
import sys
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._inspection.states import (
    GENERATORS,
    generators_of_library,
    is_apart,
    is_stream,
    state_of,
)


@pytest.mark.parametrize(
    ("thing", "draw"),
    [
        (random.Random(1), lambda g: g.random()),
        (np.random.default_rng(1), lambda g: g.normal()),
        (np.random.PCG64(1), lambda g: g.random_raw()),
        (np.random.SeedSequence(1), lambda g: g.spawn(1)),
        (tf.random.Generator.from_seed(1), lambda g: g.normal(())),
        (keras.random.SeedGenerator(1), lambda g: g.next()),
    ],
)
def test_a_draw_changes_the_state_of_a_generator(thing, draw):
    assert isinstance(thing, GENERATORS)
    before = repr(state_of(thing))
    assert repr(state_of(thing)) == before
    draw(thing)
    assert repr(state_of(thing)) != before


@pytest.mark.parametrize("size", [5, 10_000, 5_000_000])
@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_an_array_that_changes_at_an_end_is_seen_to(size, kind):
    array = np.zeros(size, kind)
    before = state_of(array)
    array[-1] = 1
    assert state_of(array) != before


def test_an_array_of_objects_is_known_by_them():
    array = np.array([[1], "a"], object)
    before = state_of(array)
    array[1] = "b"
    assert state_of(array) != before


def test_what_nobody_may_write_to_and_what_is_closed_has_no_state(tmp_path):
    large = np.zeros(5_000_000)
    large.flags.writeable = False
    assert state_of(large) is None
    memory = memoryview(bytearray(3))
    memory.release()
    assert state_of(memory) is None


def test_the_environment_has_a_state(monkeypatch):
    before = state_of(os.environ)
    monkeypatch.setenv("OVERLAP_TRAIN_TEST", "1")
    assert state_of(os.environ) != before


def test_what_gives_what_it_holds_once_is_a_stream():
    assert all(map(is_stream, (iter([1]), io.BytesIO(), (x for x in [1]))))
    assert not is_stream([1])


def test_what_logs_or_locks_is_apart():
    assert all(map(is_apart, (sys.stdout, logging.getLogger(), threading.Lock())))
    assert not any(map(is_apart, ({}, bytearray(), iter([1]), lambda: 1)))


def test_generators_of_a_library_are_found_in_its_modules_and_its_objects(monkeypatch):
    package, inner = types.ModuleType("some_noise"), types.ModuleType("some_noise.inner")
    package.own = np.random.default_rng(1)
    holder = type("Holder", (), {"__module__": "some_noise.inner"})()
    holder.generator = random.Random(2)
    inner.holder = holder
    for module in (package, inner):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert set(generators_of_library("some_noise")) == {package.own, holder.generator}
    assert not list(generators_of_library("some"))
