"""The syntax tree of a function, if it is for certain that of the code that runs."""

from __future__ import annotations

import ast
import linecache
import types
from functools import lru_cache

from overlap_train._inspection.code import within

__all__ = ["Definition", "definition_of"]

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
