"""Whose Python code a thing is: Keras's, the standard library's, an installed package's or the user's.

Of a library it is taken for granted that it cannot reach the training unless it is handed the callback, the
model or a part of it.
"""

from __future__ import annotations

import csv
import enum
import functools
import importlib.machinery
import importlib.metadata
import os
import sys
import sysconfig
import types
from pathlib import PurePath
from typing import Any

__all__ = ["SIMPLE", "Origin", "is_simple", "module_of", "origin_of"]

SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_HEAP_TYPE = 1 << 9
_STANDARD_FOLDERS = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
_MODULES = tuple(importlib.machinery.all_suffixes())
_TRAINING_PACKAGES = frozenset({"jax", "keras", "overlap_train", "tensorflow", "tf_keras", "torch"})


class Origin(enum.Enum):
    """Whose a function or a class is."""

    TRAINING = "Keras's, TensorFlow's or ours"
    STANDARD = "of Python's standard library"
    LIBRARY = "of an installed package"
    USER = "the user's"


def origin_of(thing: Any) -> Origin:
    """Returns whose a function, a class or a module is."""
    name = module_of(thing)
    package = name.split(".")[0]
    if name == "builtins" and (isinstance(thing, types.FunctionType) or _is_made(thing)):
        return Origin.USER  # by `exec` without a name
    if package in _TRAINING_PACKAGES or name.startswith(("numpy.random", "numpy.mtrand")):
        return Origin.TRAINING
    return _origin_of_file(_file_of(name), package)


def _file_of(name: str) -> str:
    """Returns the file of a module; of one that has none, such as one made in memory, that of its package."""
    while name:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            return str(file)
        name = name.rpartition(".")[0]
    return ""


def _is_made(thing: Any) -> bool:
    """Whether something is a class that a statement has made, and not one of Python's own."""
    return isinstance(thing, type) and bool(thing.__flags__ & _HEAP_TYPE)


@functools.cache
def _origin_of_file(file: str, package: str) -> Origin:
    """Returns whose a module is that has this file, in a package of that name."""
    parts = PurePath(file).parts
    if {"site-packages", "dist-packages"} & set(parts):
        return Origin.LIBRARY
    # A file of the user's may be called `statistics.py`, too.
    standard = not file or any(PurePath(file).is_relative_to(folder) for folder in _STANDARD_FOLDERS)
    if standard and package in sys.stdlib_module_names:
        return Origin.STANDARD
    depths = (depth for depth, part in enumerate(parts) if part.split(".")[0] == package)
    installed = any("/".join(parts[d:]) in _installed_in(str(PurePath(*parts[:d]))) for d in depths)
    return Origin.LIBRARY if installed else Origin.USER


@functools.cache
def _installed_in(folder: str) -> frozenset[str]:
    """Returns the modules' files that pip has put into a folder of any name, as with `--target` or by PEX.

    Only what a record names counts: what is installed to be edited is the user's, and so is what stands
    beside a library in a package of the same name, such as one without an `__init__.py`, or `utils`.
    """
    try:
        if not any(name.endswith(".dist-info") for name in os.listdir(folder)):
            return frozenset()
        found = importlib.metadata.distributions(path=[folder])
        records = [each.read_text("RECORD") or "" for each in found]
    except (OSError, ValueError):  # it cannot be read
        return frozenset()
    files = (row[0] for record in records for row in csv.reader(record.splitlines()) if row)
    return frozenset(file for file in files if file.endswith(_MODULES))


def is_simple(thing: Any) -> bool:
    """Whether something is a number, a text or None, and not of a class of the user's that acts as one."""
    kind: Any = type(thing)
    return isinstance(thing, SIMPLE) and _is_simple_class(kind)


@functools.lru_cache(maxsize=1024)
def _is_simple_class(kind: Any) -> bool:
    if origin_of(kind) is not Origin.USER:
        return True
    # Members of an enumeration are numbers or texts with a name, unless they have been given methods.
    return issubclass(kind, enum.Enum) and not any(
        _is_written(member)
        for base in kind.__mro__
        if origin_of(base) is Origin.USER
        for member in vars(base).values()
    )


def _is_written(member: Any) -> bool:
    """Whether a member of a class is code of the user's."""
    function = getattr(member, "__func__", member)
    written = isinstance(function, types.FunctionType) and origin_of(function) is Origin.USER
    return written or isinstance(member, (property, functools.cached_property))


def module_of(thing: Any) -> str:
    """Returns the module in which something was written, whatever has been wrapped around it."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    variables = thing.__globals__ if isinstance(thing, types.FunctionType) else {}
    return str(variables.get("__name__") or getattr(thing, "__module__", None) or "builtins")
