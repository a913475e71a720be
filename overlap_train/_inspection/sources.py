"""The syntax tree of a function, if it is for certain that of the code that runs, and what classes assign."""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from functools import lru_cache
from typing import Any

from overlap_train._inspection.code import functions_in, names_in, stored_in, within

__all__ = ["EVERYTHING", "Definition", "assigned_in", "definition_of"]

Definition = ast.FunctionDef | ast.Lambda
_PARTS = (
    *("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount"),
    *("co_kwonlyargcount", "co_posonlyargcount", "co_flags", "co_exceptiontable"),
)
_STORING = ("STORE_ATTR", "DELETE_ATTR")
# Names in the code of a method that may set any attribute.
_SETTING = frozenset(
    {"__delattr__", "__dict__", "__init__", "__setattr__", "delattr", "exec", "setattr", "vars"}
)


class _Everything(frozenset[str]):
    """Holds every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __or__(self, other: object) -> Any:
        return self


EVERYTHING: frozenset[str] = _Everything()


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
    return all(getattr(code, name) == getattr(other, name) for name in _PARTS) and all(
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


@lru_cache(maxsize=1024)
def assigned_in(kind: Any) -> frozenset[str]:
    """Returns the attributes that methods of a class set after `__init__`, on itself or another object."""
    names: set[str] = set()
    for base in inspect.getmro(kind):
        for name, member in vars(base).items():
            for function in () if name == "__init__" else functions_in(member):
                names |= stored_in(function.__code__, *_STORING)
                if _SETTING & names_in(function.__code__):
                    return EVERYTHING
    return EVERYTHING if "__class__" in names else frozenset(names)
