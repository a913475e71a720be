"""The names in Python's code, and the functions that lie in members of classes, as they are written."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

__all__ = [
    "Unclear",
    "cells_of",
    "content_of",
    "function_of",
    "functions_in",
    "imported",
    "names_in",
    "stored_in",
    "stores",
    "texts_in",
    "within",
]

_WRAPPED = ("__func__", "__wrapped__", "fget", "fset", "fdel", "func")
_REBINDING = ("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL")


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


def texts_in(code: types.CodeType) -> frozenset[str]:
    """Returns the texts in code, and in the functions inside it, that may be names: as for `getattr`."""
    texts = (c for each in within(code) for c in each.co_consts if isinstance(c, str))
    return frozenset(text for text in texts if text.isidentifier())


def stored_in(code: types.CodeType, *operations: str) -> frozenset[str]:
    """Returns the names with which code, or a function inside it, does one of some operations."""
    instructions = (i for each in within(code) for i in dis.get_instructions(each))
    return frozenset(i.argval for i in instructions if i.opname in operations)


def stores(code: types.CodeType, name: str) -> bool:
    """Whether code, or a function inside it, gives a global name or one of a closure another value."""
    known = any(name in (*each.co_names, *each.co_cellvars, *each.co_freevars) for each in within(code))
    return known and name in stored_in(code, *_REBINDING)


def function_of(member: Any) -> Any:
    """Returns the function that a member of a class is, or by which a property is read."""
    if hasattr(type(member), "__getattr__"):  # an object that may say of anything that it has it
        return member
    return getattr(member, "fget", None) or getattr(member, "__func__", member)


def functions_in(member: Any) -> Iterator[types.FunctionType]:
    """Yields the functions in a member of a class, and those that a decorator has wrapped."""
    waiting: list[Any] = [member]
    seen: list[Any] = []
    while waiting:
        each = waiting.pop()
        if any(each is other for other in seen):
            continue
        seen.append(each)
        if isinstance(each, types.FunctionType):
            yield each
            waiting += [content for cell in each.__closure__ or () for content in content_of(cell)]
        for name in _WRAPPED:
            found = inspect.getattr_static(each, name, None)
            waiting += [getattr(each, name)] if found is not None else []


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
