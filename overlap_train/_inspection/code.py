"""The names in Python code and who has written it, without running any of it.

We assume that a library cannot reach the training unless it is given the callback, the model or a part of
it.
"""

from __future__ import annotations

import ast
import dis
import enum
import functools
import linecache
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any


class Unclear(Exception):
    """It is unclear what code does, or which objects it can reach."""


def within(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and that of the functions inside it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from within(value)


@functools.lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Return the names of variables and attributes in code and in that of the functions inside it."""
    return frozenset().union(*(inner.co_names for inner in within(code)))


def stored_in(code: types.CodeType, *operations: str) -> frozenset[str]:
    """Return the names with which code, or a function inside it, executes one of `operations`."""
    instructions = (i for inner in within(code) for i in dis.get_instructions(inner))
    return frozenset(i.argval for i in instructions if i.opname in operations)


def attributes_set_by(classes: Iterable[type]) -> frozenset[str]:
    """Return the names of the attributes that the methods and properties of classes set."""
    members = [function_of(member) for kind in classes for member in tuple(vars(kind).values())]
    codes = [member.__code__ for member in members if isinstance(member, types.FunctionType)]
    return frozenset().union(*(stored_in(code, "STORE_ATTR") for code in codes))


def function_of(member: Any) -> Any:
    """Return the function of a method or a property; any other member of a class as it is."""
    if hasattr(type(member), "__getattr__"):  # an object that may claim to have any attribute
        return member
    return getattr(member, "fget", None) or getattr(member, "__func__", member)


def cells_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """Return the cells of the enclosing functions' variables that a function reads, by name."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))


def content_of(cell: types.CellType) -> tuple[Any, ...]:
    """Return the content of a closure's cell, empty if the cell has not been filled yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def imported(name: str, package: Any) -> list[Any]:
    """Return the modules that an `import` inside a function may mean by a name."""
    paths = {name, f"{package}.{name}" if package else name}
    return [sys.modules[path] for path in paths if path in sys.modules]


SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_HEAP_TYPE = 1 << 9
_STANDARD_FOLDERS = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
_TRAINING_PACKAGES = frozenset({"jax", "keras", "overlap_train", "tensorflow", "tf_keras", "torch"})


class Origin(enum.Enum):
    """Who has written a function or a class."""

    TRAINING = "Keras's, TensorFlow's or ours"
    STANDARD = "of Python's standard library"
    LIBRARY = "of an installed package"
    USER = "the user's"


def origin_of(thing: Any) -> Origin:
    """Return who has written a function, a class or a module."""
    name = module_of(thing)
    package = name.split(".")[0]
    if name == "builtins" and (isinstance(thing, types.FunctionType) or _is_heap_type(thing)):
        return Origin.USER  # by `exec` without a name
    if package in _TRAINING_PACKAGES or name.startswith(("numpy.random", "numpy.mtrand")):
        return Origin.TRAINING
    return _origin_of_file(_file_of(name), package)


def _file_of(name: str) -> str:
    """Return the file of a module; for one without a file, such as one created in memory, its package's."""
    while name:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            return str(file)
        name = name.rpartition(".")[0]
    return ""


def _is_heap_type(thing: Any) -> bool:
    """Whether something is a class that a statement has created, not one of Python's own."""
    return isinstance(thing, type) and bool(thing.__flags__ & _HEAP_TYPE)


@functools.cache
def _origin_of_file(file: str, package: str) -> Origin:
    """Return who has written the module in a file, of a package of that name."""
    parts = PurePath(file).parts
    if {"site-packages", "dist-packages"} & set(parts):
        return Origin.LIBRARY
    # A user's file may be called `statistics.py`, too.
    standard = not file or any(PurePath(file).is_relative_to(folder) for folder in _STANDARD_FOLDERS)
    return Origin.STANDARD if standard and package in sys.stdlib_module_names else Origin.USER


def is_simple(thing: Any) -> bool:
    """Whether something is a number, a text, None or a member of an enumeration of these.

    Not one of a user's class that behaves like a number or a text.
    """
    kind: Any = type(thing)
    return isinstance(thing, SIMPLE) and (isinstance(thing, enum.Enum) or origin_of(kind) is not Origin.USER)


def module_of(thing: Any) -> str:
    """Return the name of the module in which something was written, whatever wraps it."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    variables = thing.__globals__ if isinstance(thing, types.FunctionType) else {}
    return str(variables.get("__name__") or getattr(thing, "__module__", None) or "builtins")


Definition = ast.FunctionDef | ast.Lambda


@functools.lru_cache(maxsize=1024)
def definition_of(code: types.CodeType) -> Definition | None:
    """Return the definition of a function, or None.

    None if there is no source, if it was edited after the import, or if it does not tell apart functions that
    begin in the same line.
    """
    nodes, codes = _functions_of(code.co_filename)
    # Both in the order of the source.
    nodes = sorted((node for node in nodes if _is_at(node, code)), key=lambda node: node.col_offset)
    place = (code.co_firstlineno, code.co_name)
    codes = [other for other in codes if (other.co_firstlineno, other.co_name) == place]
    if len(nodes) != len(codes):
        return None
    return next((node for node, other in zip(nodes, codes, strict=True) if code == other), None)


def _is_at(node: Definition, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


@functools.lru_cache(maxsize=64)
def _functions_of(file: str) -> tuple[list[Definition], list[types.CodeType]]:
    """Return the definitions of the functions in a source file, and all code in it."""
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
        codes = list(within(compile(source, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return [], []
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))], codes
