"""The syntax tree of a function, if it is for certain that of the code that runs, and what classes assign."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

__all__ = ["Definition", "assigned_in", "definition_of"]

Definition = ast.FunctionDef | ast.Lambda


@lru_cache(maxsize=1024)
def definition_of(code: types.CodeType) -> Definition | None:
    """Returns the definition of a function.

    Args:
        code: of the function.

    Returns:
        None if the source is not at hand, or has been edited since it was imported, or if two functions in a
        line cannot be told apart.
    """
    nodes, codes = _of_file(code.co_filename)
    found = [node for node in nodes if _is_at(node, code) and _names(node) >= _named_in(code)]
    if len(found) != 1 or not any(_is_same(code, other) for other in codes.get(code.co_firstlineno, ())):
        return None
    return found[0]


def _is_at(node: Definition, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


def _names(node: Definition) -> set[str]:
    """Returns the names of variables and attributes in a definition, and those of its parameters."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return names | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def _named_in(code: types.CodeType) -> set[str]:
    """Returns names that stand in the source of code, to tell the lambdas of a line apart."""
    return {*code.co_names, *code.co_varnames[: code.co_argcount]} if code.co_name == "<lambda>" else set()


def _is_same(code: types.CodeType, other: types.CodeType) -> bool:
    """Whether two code objects do the same; constants are compared by type, as 1 equals True."""
    return (
        (code.co_name, code.co_code, code.co_names) == (other.co_name, other.co_code, other.co_names)
        and (code.co_varnames, code.co_freevars) == (other.co_varnames, other.co_freevars)
        and _constants(code) == _constants(other)
    )


def _constants(code: types.CodeType) -> list[str]:
    return [repr(value) for value in code.co_consts if not isinstance(value, types.CodeType)]


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
    for code in _within(whole):
        codes.setdefault(code.co_firstlineno, []).append(code)
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))], codes


def _within(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _within(value)


@lru_cache(maxsize=1024)
def assigned_in(kind: Any) -> frozenset[str]:
    """Returns the attributes that methods of a class set after `__init__`, on itself or another object."""
    names: set[str] = set()
    for base in inspect.getmro(kind):
        for name, member in vars(base).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if name == "__init__" or not isinstance(function, types.FunctionType):
                continue
            if {"setattr", "__dict__", "__setattr__"} & _read_in(function.__code__, names):
                return _Everything()
    return frozenset(names)


class _Everything(frozenset[str]):
    """Holds every name."""

    def __contains__(self, name: object) -> bool:
        return True


def _read_in(code: types.CodeType, assigned: set[str]) -> set[str]:
    """Adds the attributes that code assigns to a set; returns all names in it."""
    names = set(code.co_names)
    assigned |= {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            names |= _read_in(value, assigned)
    return names
