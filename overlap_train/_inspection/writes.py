"""Which objects the Python code that makes batches may change, as its source says.

A curriculum that sets a level in every tenth epoch changes nothing while one watches the first. What is read
here is what code assigns to (attributes, items, global names and those of a closure), and on what it calls a
method that changes a container. Whose source is not at hand can only be watched.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Sequence
from typing import Any

from overlap_train._inspection.code import cells_of, function_of, names_in
from overlap_train._inspection.lookup import MISSING, look_up, variables_of
from overlap_train._inspection.origins import Origin, is_simple, origin_of
from overlap_train._inspection.sources import Definition, definition_of

__all__ = ["may_write"]

_CHANGING = frozenset(
    {"add", "append", "appendleft", "assign", "assign_add", "assign_sub", "byteswap", "clear", "discard"}
    | {"difference_update", "extend", "extendleft", "fill", "insert", "intersection_update", "itemset"}
    | {"partition", "pop", "popitem", "popleft", "put", "remove", "resize", "reverse", "rotate", "setdefault"}
    | {"setfield", "sort", "symmetric_difference_update", "update"}
)
# These change what they are given first.
_CHANGING_FIRST = frozenset(
    {"copyto", "delattr", "heappop", "heappush", "put", "putmask", "setattr", "shuffle"}
)
# Before a batch is made.
_BEFORE = frozenset({"__init__", "__init_subclass__", "__new__", "__post_init__", "__setstate__"})
_MOST_ITEMS, _MOST_DEPTH = 100, 8


def may_write(things: Sequence[Any]) -> list[Any]:
    """Returns what code may change: objects, and global names as pairs of a namespace and a text.

    Args:
        things: all that the code can get hold of, with its functions and classes.
    """
    found: list[Any] = []
    for function in _called(things):
        node = definition_of(function.__code__)
        if node is not None:
            found += _Body(node, function, _owners(function, things)).written()
    return found


def _called(things: Sequence[Any]) -> list[types.FunctionType]:
    """Returns the user's functions that making a batch may call: special ones, hooks, and what these name."""
    functions = [each for each in things if isinstance(each, types.FunctionType)]
    bound = [each.__func__ for each in things if isinstance(each, types.MethodType)]
    waiting = [f for f in functions if origin_of(f) is Origin.USER and f.__name__ not in _BEFORE]
    called: list[types.FunctionType] = []
    names: set[str] = set()
    while True:
        new = [f for f in waiting if _is_entry(f) or f in bound or f.__name__ in names]
        if not new:
            return called
        called += new
        waiting = [f for f in waiting if f not in new]
        names.update(*(names_in(f.__code__) for f in new))


def _is_entry(function: types.FunctionType) -> bool:
    is_method = "." in function.__qualname__.rpartition("<locals>.")[2]
    return not is_method or function.__name__.startswith(("__", "on_epoch_"))


def _owners(function: types.FunctionType, things: Sequence[Any]) -> list[Any]:
    """Returns what the first parameter of a method may be: those objects whose class has it."""
    name = function.__name__
    return [
        thing
        for thing in things
        if not isinstance(thing, (type, types.FunctionType))
        and any(function_of(vars(base).get(name)) is function for base in type(thing).__mro__)
    ]


class _Body:
    """The body of one function.

    Args:
        node: its definition.
        function: itself.
        owners: what its first parameter may be.
    """

    def __init__(self, node: Definition, function: types.FunctionType, owners: list[Any]) -> None:
        self._node, self._function, self._owners = node, function, owners
        parameters = [*node.args.posonlyargs, *node.args.args]
        self._first = parameters[0].arg if parameters else None
        self._cells = cells_of(function)
        self._global = {
            name for each in ast.walk(node) if isinstance(each, ast.Global) for name in each.names
        }
        self._aliases: dict[str, list[ast.expr]] = {}
        for each in ast.walk(node):
            if (
                isinstance(each, ast.Assign)
                and len(each.targets) == 1
                and isinstance(each.targets[0], ast.Name)
            ):
                self._aliases.setdefault(each.targets[0].id, []).append(each.value)

    def written(self) -> Iterator[Any]:
        """Yields what it may change."""
        for node in ast.walk(self._node):
            if isinstance(node, ast.Call):
                yield from self._changed_by(node)
            elif isinstance(node, ast.AugAssign):  # a list, which stays the same list, or an array
                yield from (value for value in self._values(node.target) if not is_simple(value))
            elif isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
                yield from self._assigned(node)

    def _assigned(self, target: ast.AST) -> Iterator[Any]:
        """Yields what changes when something is assigned to an expression, or when that is deleted."""
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            yield from self._values(target.value)
        elif isinstance(target, ast.Name) and target.id in self._global:
            yield (self._function.__globals__, target.id)
        elif isinstance(target, ast.Name) and target.id in self._cells:
            yield self._cells[target.id]

    def _changed_by(self, call: ast.Call) -> Iterator[Any]:
        called = call.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
        if isinstance(called, ast.Attribute) and name in _CHANGING:
            yield from self._values(called.value)
        if name in _CHANGING_FIRST and call.args:
            yield from self._values(call.args[0])
        for keyword in call.keywords:
            if keyword.arg == "out":
                yield from self._values(keyword.value)

    def _values(self, node: ast.expr, depth: int = 0) -> list[Any]:
        """Returns the objects that an expression may stand for, as far as they exist already."""
        if depth > _MOST_DEPTH:
            return []
        if isinstance(node, ast.Name):
            return self._named(node.id, depth)
        if isinstance(node, ast.Attribute):
            return [v for owner in self._values(node.value, depth + 1) for v in _attribute(owner, node.attr)]
        if isinstance(node, ast.Subscript):
            return [v for owner in self._values(node.value, depth + 1) for v in _items(owner)]
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "type" and len(node.args) == 1:
            return [type(value) for value in self._values(node.args[0], depth + 1)]
        return []

    def _named(self, name: str, depth: int) -> list[Any]:
        found = [v for value in self._aliases.get(name, ()) for v in self._values(value, depth + 1)]
        if name == self._first:
            found += self._owners
        elif name in self._cells:
            found.append(look_up(self._cells[name], ""))
        elif name not in self._function.__code__.co_varnames:
            found.append(self._function.__globals__.get(name, MISSING))
        return [value for value in found if value is not MISSING]


def _attribute(owner: Any, name: str) -> list[Any]:
    if name == "__class__":
        return [type(owner)]
    if isinstance(owner, types.ModuleType):
        found = vars(owner).get(name, MISSING)
    else:
        found = look_up(owner, name)
    return [found] if found is not MISSING else []


def _items(owner: Any) -> list[Any]:
    if isinstance(owner, dict):
        return list(owner.values())[:_MOST_ITEMS]
    if isinstance(owner, (list, tuple)):
        return list(owner[:_MOST_ITEMS])
    return list(variables_of(owner).values())[:_MOST_ITEMS]
