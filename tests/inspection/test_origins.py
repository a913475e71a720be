"""Whose a function or a class is, whatever it calls itself."""

import enum
import json
import math
import statistics
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tqdm

from overlap_train import Trainer
from overlap_train._inspection.code import Origin, is_simple, origin_of


class Own:
    def __len__(self):
        return 3


class OwnNumber(float):
    pass


class Plain(enum.IntEnum):
    ONE = 1


def own():
    pass


def named(value):
    """Returns a name that is the same in each process."""
    if isinstance(value, Origin):
        return value.name
    name = getattr(value, "__name__", None)
    return str(name) if name else type(value).__name__


def made_by_exec(source, name, **variables):
    exec(source, variables)
    return variables[name]


@pytest.mark.parametrize(
    ("thing", "origin"),
    [
        (keras.layers.Dense, Origin.TRAINING),
        (tf.reduce_sum, Origin.TRAINING),
        (Trainer, Origin.TRAINING),
        (np.random.default_rng, Origin.TRAINING),
        (json.dumps, Origin.STANDARD),
        (math.sqrt, Origin.STANDARD),
        (dict, Origin.STANDARD),
        (statistics, Origin.STANDARD),
        (np.mean, Origin.LIBRARY),
        (np, Origin.LIBRARY),
        (tqdm.tqdm, Origin.LIBRARY),
        (Own, Origin.USER),
        (own, Origin.USER),
        (made_by_exec("def f(): pass", "f"), Origin.USER),
        (made_by_exec("class C: pass", "C"), Origin.USER),
        (type("C", (), {"__module__": "builtins"}), Origin.USER),
    ],
    ids=named,
)
def test_whose_it_is(thing, origin):
    assert origin_of(thing) is origin


@pytest.mark.parametrize(
    ("name", "folder", "origin"),
    [
        ("shapes", "site-packages", Origin.LIBRARY),
        ("shapes", "dist-packages", Origin.LIBRARY),
        ("shapes", "project", Origin.USER),
        ("statistics", "project", Origin.USER),  # which is also the name of one of Python's
    ],
)
def test_a_library_is_what_lies_where_libraries_are_installed(monkeypatch, name, folder, origin):
    module = types.ModuleType(name)
    module.__file__ = f"/usr/lib/{folder}/{name}/__init__.py"
    monkeypatch.setitem(sys.modules, name, module)
    assert origin_of(module) is origin
    # As the modules that `six` makes, and the classes that say that they are of a module that is none.
    assert origin_of(type("C", (), {"__module__": f"{name}.made.no.module"})) is origin


@pytest.mark.parametrize(
    ("thing", "simple"),
    [
        (3, True),
        (True, True),
        ("text", True),
        (b"bits", True),
        (None, True),
        (np.float64(3), True),
        (Plain.ONE, True),
        (OwnNumber(3), False),
        ([], False),
        (np.float32(3), False),
        (Own(), False),
    ],
    ids=named,
)
def test_numbers_and_texts_are_simple_unless_a_class_of_the_users_acts_as_one(thing, simple):
    assert is_simple(thing) is simple
