"""Whose a function or a class is, whatever it calls itself."""

from __future__ import annotations

import contextlib
import enum
import functools
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
from overlap_train._inspection.code import Origin, is_simple, module_of, origin_of


class Own:
    def __len__(self):
        return 3


class OwnNumber(float):
    pass


class Plain(enum.IntEnum):
    ONE = 1


class Clever(enum.IntEnum):
    ONE = 1

    def __index__(self):
        return 7


class Property(enum.Enum):
    ONE = "1"

    @property
    def shown(self):
        return 7


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


def test_a_file_of_the_users_named_as_one_of_pythons_is_the_users(monkeypatch):
    mine = types.ModuleType("statistics")
    mine.__file__ = "/somewhere/else/statistics.py"
    monkeypatch.setitem(sys.modules, "statistics", mine)
    assert origin_of(mine) is Origin.USER


NO_FILE = "none"


def module_in(folder, monkeypatch, name, file=None):
    """Returns a module that has been imported from a file of a folder."""
    module = types.ModuleType(name)
    if file != NO_FILE:
        module.__file__ = str(folder / (file or name.replace(".", "/") + ".py"))
    monkeypatch.setitem(sys.modules, name, module)
    return module


RECORD = """shapes/__init__.py,sha256=x,10
shapes/round.py,sha256=x,10
lonely.py,,
fast.cpython-311-x86_64-linux-gnu.so,,
"odd,name/data.txt",,
"odd,name/module.py",,
acme/core/__init__.py,sha256=x,10
acme/core/__pycache__/__init__.cpython-311.pyc,,
utils/__init__.py,,
../../bin/shapes,,
shapes-1.0.dist-info/RECORD,,
"""


def install(folder):
    """Writes what pip does of a distribution that it has put into a folder."""
    information = folder / "shapes-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1.0\n")
    (information / "RECORD").write_text(RECORD)


@pytest.mark.parametrize(
    ("name", "file", "origin"),
    [
        ("shapes", "shapes/__init__.py", Origin.LIBRARY),
        ("shapes.round", None, Origin.LIBRARY),
        ("lonely", None, Origin.LIBRARY),
        ("fast", "fast.cpython-311-x86_64-linux-gnu.so", Origin.LIBRARY),
        ("training", None, Origin.USER),
        ("project.layers", None, Origin.USER),
        ("shapeshift", None, Origin.USER),
        ("shapes", "elsewhere/shapes/__init__.py", Origin.USER),
        ("odd,name.module", None, Origin.LIBRARY),
        # In a folder of packages without an `__init__.py`, and in one that a library happens to have, too.
        ("acme.core", "acme/core/__init__.py", Origin.LIBRARY),
        ("acme.train.callbacks", None, Origin.USER),
        ("acme", NO_FILE, Origin.USER),
        ("acme.made", NO_FILE, Origin.USER),
        ("utils", "utils/__init__.py", Origin.LIBRARY),
        ("utils.mine", None, Origin.USER),
        ("shapes.mine", None, Origin.USER),
    ],
)
def test_a_library_is_one_wherever_pip_has_put_it(tmp_path, monkeypatch, name, file, origin):
    """In a folder of its own, as by `pip install --target` and PEX, or beside the user's own modules."""
    install(tmp_path)
    assert origin_of(module_in(tmp_path, monkeypatch, name, file)) is origin


def test_what_has_no_file_is_of_the_package_in_which_it_is(tmp_path, monkeypatch):
    """As the modules that `six` makes, and the classes that say that they are of a module that is none."""
    install(tmp_path)
    module_in(tmp_path, monkeypatch, "shapes", "shapes/__init__.py")
    module_in(tmp_path, monkeypatch, "utils", "utils/elsewhere.py")
    made = module_in(tmp_path, monkeypatch, "shapes.made", NO_FILE)
    assert origin_of(made) is Origin.LIBRARY
    assert origin_of(type("C", (), {"__module__": "shapes.made.no.module"})) is Origin.LIBRARY
    assert origin_of(type("C", (), {"__module__": "utils.no.module"})) is Origin.USER


@pytest.mark.parametrize("left", ["shapes.egg-info", "shapes-1.0.dist-info"])
def test_a_project_is_the_users_though_it_has_been_built_there(tmp_path, monkeypatch, left):
    (tmp_path / left).mkdir()
    assert origin_of(module_in(tmp_path, monkeypatch, "shapes", "shapes/__init__.py")) is Origin.USER


def test_a_record_that_cannot_be_read_names_nothing(tmp_path, monkeypatch):
    (tmp_path / "shapes-1.0.dist-info").mkdir()
    (tmp_path / "shapes-1.0.dist-info" / "RECORD").write_bytes(b"\xff\xfe\x00")
    assert origin_of(module_in(tmp_path, monkeypatch, "shapes")) is Origin.USER


def test_what_is_wrapped_around_a_function_does_not_count():
    assert module_of(functools.wraps(json.dumps)(own)) == __name__
    assert module_of(contextlib.contextmanager(own)) == "contextlib"
    assert module_of(np) == "numpy"
    assert module_of(3) == "builtins"


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
        (Clever.ONE, False),
        (OwnNumber(3), False),
        (Property.ONE, False),
        ([], False),
        (np.float32(3), False),
        (Own(), False),
    ],
    ids=named,
)
def test_numbers_and_texts_are_simple_unless_a_class_of_the_users_acts_as_one(thing, simple):
    assert is_simple(thing) is simple
