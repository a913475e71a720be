"""What Python code names and whose it is, and what objects hold, without running any of it.

Of a library it is taken for granted that it cannot reach the training unless it is handed the callback, the
model or a part of it.
"""

from __future__ import annotations

import ast
import csv
import dis
import enum
import functools
import importlib.machinery
import importlib.metadata
import linecache
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import PurePath
from typing import Any

__all__ = [
    "SIMPLE",
    "Origin",
    "Unclear",
    "cells_of",
    "content_of",
    "definition_of",
    "function_of",
    "imported",
    "is_simple",
    "module_of",
    "names_in",
    "origin_of",
    "stored_in",
    "variables_of",
    "within",
]


class Unclear(Exception):
    """What code does, or what it can get hold of, cannot be told."""


def within(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields code, and that of the functions inside it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from within(value)


@functools.lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Returns the names of variables and attributes in code and in that of the functions inside it."""
    return frozenset().union(*(each.co_names for each in within(code)))


def stored_in(code: types.CodeType, *operations: str) -> frozenset[str]:
    """Returns the names with which code, or a function inside it, does one of some operations."""
    instructions = (i for each in within(code) for i in dis.get_instructions(each))
    return frozenset(i.argval for i in instructions if i.opname in operations)


def function_of(member: Any) -> Any:
    """Returns the function that a member of a class is, or by which a property is read."""
    if hasattr(type(member), "__getattr__"):  # an object that may say of anything that it has it
        return member
    return getattr(member, "fget", None) or getattr(member, "__func__", member)


def cells_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """Returns the cells of the variables of enclosing functions that a function reads, by their names."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))


def content_of(cell: types.CellType) -> tuple[Any, ...]:
    """Returns what is in a cell of a closure: nothing if it has not been filled yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def imported(name: str, package: Any) -> list[Any]:
    """Returns the modules that an `import` inside a function may mean by a name."""
    inner = f"{package}.{name}" if package else name
    return [sys.modules[each] for each in {name, inner} if each in sys.modules]


_MISSING = object()


def variables_of(owner: Any) -> Mapping[str, Any]:
    """Returns the attributes of an object itself, those in slots too, without running any code."""
    try:
        found: Mapping[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        found = {}
    kind: Any = type(owner)
    slots = _slots_of(kind)
    if not slots:
        return found
    kept = {name: _slot(slot, owner) for name, slot in slots}
    return {**found, **{name: value for name, value in kept.items() if value is not _MISSING}}


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Returns the slots that the `__slots__` of a class written in Python and of its bases have made."""
    return tuple(
        (name, member)
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    )


def _slot(found: Any, owner: Any) -> Any:
    try:
        return found.__get__(owner)
    except AttributeError:
        return _MISSING


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
    next to a library in a package of the same name, such as one without an `__init__.py`, or `utils`.
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


Definition = ast.FunctionDef | ast.Lambda
_PARTS = (
    *("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount"),
    *("co_kwonlyargcount", "co_posonlyargcount", "co_flags", "co_exceptiontable"),
)


@lru_cache(maxsize=1024)
def definition_of(code: types.CodeType) -> Definition | None:
    """Returns the definition of a function, or None.

    None if the source is not at hand, has been edited since it was imported, or does not tell the functions
    apart that begin in a line.
    """
    nodes, codes = _of_file(code.co_filename)
    # Both in the order in which they are written.
    found = sorted((node for node in nodes if _is_at(node, code)), key=lambda node: node.col_offset)
    compiled = [each for each in codes.get(code.co_firstlineno, ()) if each.co_name == code.co_name]
    if len(found) != len(compiled):
        return None
    return next((node for node, each in zip(found, compiled, strict=True) if _is_same(code, each)), None)


def _is_at(node: Definition, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


def _is_same(code: types.CodeType, other: types.CodeType) -> bool:
    """Whether two code objects do the same; constants are compared by type, as 1 equals True."""
    same = all(getattr(code, name, None) == getattr(other, name, None) for name in _PARTS)
    return (same and len(code.co_consts) == len(other.co_consts)) and all(
        _is_same(left, right)
        if isinstance(left, types.CodeType) and isinstance(right, types.CodeType)
        else repr(left) == repr(right)
        for left, right in zip(code.co_consts, other.co_consts, strict=True)
    )


@lru_cache(maxsize=64)
def _of_file(name: str) -> tuple[list[Definition], dict[int, list[types.CodeType]]]:
    """Returns the functions of a source file, and their code by the line where it begins."""
    source = "".join(linecache.getlines(name))
    try:
        tree = ast.parse(source)
        whole = compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return [], {}
    codes: dict[int, list[types.CodeType]] = {}
    for code in within(whole):
        codes.setdefault(code.co_firstlineno, []).append(code)
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))], codes
