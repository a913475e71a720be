"""The one whitelist of syntax: hooks that merely note what they are given, and functions that only compute.

A hook that keeps, counts or prints what it is given cannot tell when it is called, and a training cannot tell
that it was. Such a hook may use its arguments, what its callback holds if that is plain data, some of
Python's functions and modules, and functions of its kind. Anything else is taken to do anything, and so is
code whose source is not at hand.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import logging
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.plain import is_plain, is_plain_stream
from overlap_train._inspection.code import cells_of, content_of, stored_in
from overlap_train._inspection.lookup import variables_of
from overlap_train._inspection.origins import Origin, is_simple, origin_of
from overlap_train._inspection.sources import definition_of
from overlap_train._keras import methods as keras_methods

__all__ = ["only_computes", "only_notes"]

_SYNTAX: tuple[type[ast.AST], ...] = (
    *(ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Break, ast.Continue, ast.Delete, ast.ExceptHandler),
    *(
        ast.Expr,
        ast.For,
        ast.If,
        ast.Pass,
        ast.Return,
        ast.Try,
        ast.While,
        ast.With,
        ast.withitem,
        ast.expr_context,
    ),
    *(ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.Dict, ast.DictComp),
    *(ast.FormattedValue, ast.GeneratorExp, ast.IfExp, ast.JoinedStr, ast.Lambda, ast.List, ast.ListComp),
    *(ast.Name, ast.NamedExpr, ast.Set, ast.SetComp, ast.Slice, ast.Starred, ast.Subscript, ast.Tuple),
    *(ast.UnaryOp, ast.arg, ast.arguments, ast.boolop, ast.cmpop, ast.comprehension, ast.keyword),
    *(ast.operator, ast.unaryop),
)
# Ways from data to the code that has made it, from a logger to all others, and to what is stored as code.
_REFUSED = frozenset(
    {
        "ag_frame",
        "cr_frame",
        "f_back",
        "getChild",
        "getLogger",
        "gi_frame",
        "load",
        "manager",
        "root",
        "tb_frame",
    }
)
_BUILTINS = frozenset(
    {"Exception", "IndexError", "KeyError", "TypeError", "ValueError", "abs", "all", "any", "bool", "dict"}
    | {"divmod", "enumerate", "filter", "float", "format", "int", "isinstance", "len", "list", "map", "max"}
    | {"min", "pow", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip"}
)
_COMPUTING = frozenset({"builtins", "cmath", "math", "numpy", "keras.ops", "tensorflow._api.v2.math"})
_NOTING = frozenset(
    {
        "_csv",
        "_json",
        "builtins",
        "collections",
        "contextlib",
        "csv",
        "itertools",
        "json",
        "logging",
        "math",
        "mlflow",
    }
    | {"ntpath", "numpy", "os", "posixpath", "statistics", "string", "sys", "tqdm", "wandb"}
)
_ALLOWED = {"os": ("linesep", "path", "sep"), "sys": ("stderr", "stdout")}  # of these modules


def only_notes(callback: keras.callbacks.Callback, hooks: Iterable[str]) -> bool:
    """Whether hooks of a callback keep, count or print what they are given, and do nothing else."""
    kind: Any = type(callback)
    if hasattr(kind, "__getattr__") or kind.__setattr__ is not object.__setattr__:
        return False
    whitelist = _Whitelist(callback)
    return all(callable(getattr(callback, hook)) and whitelist.allows_own(hook) for hook in hooks)


def only_computes(function: Any) -> bool:
    """Whether nobody can notice that a function of numbers is called once more."""
    if isinstance(function, keras.optimizers.schedules.LearningRateSchedule):
        return keras_methods.is_stock_method(type(function).__call__)
    if isinstance(function, types.MethodType):
        return function.__name__ == "__call__" and only_computes(function.__self__)
    return isinstance(function, types.FunctionType) and _Whitelist(None).allows(function)


@dataclass(frozen=True)
class _Needs:
    """What a function of allowed syntax takes from outside of itself.

    Attributes:
        paths: dotted names that begin with a global name, one of a closure or of Python's.
        reads: attributes of its first parameter, if that is the callback.
        writes: those of them that it sets.
        computes: whether it sets no attribute and no item, and asks no value for attributes.
    """

    paths: frozenset[tuple[str, ...]]
    reads: frozenset[str]
    writes: frozenset[str]
    computes: bool


class _Whitelist:
    """Says what may be used by a callback's hooks, or, without a callback, by functions that only compute."""

    def __init__(self, callback: keras.callbacks.Callback | None) -> None:
        self._callback = callback
        self._modules = _COMPUTING if callback is None else _NOTING
        self._seen: set[tuple[types.FunctionType, bool]] = set()

    def allows_own(self, name: str) -> bool:
        """Whether what the callback has under a name may be used: a method or a value."""
        inherited = inspect.getattr_static(type(self._callback), name, None)
        if name == "_model" or hasattr(type(inherited), "__set__"):  # as a property has
            return False
        found = variables_of(self._callback).get(name, inherited)
        if isinstance(found, types.FunctionType) and found is inherited:
            return self.allows(found, bound=True)
        if isinstance(found, types.MethodType) and found.__self__ is self._callback:
            return isinstance(found.__func__, types.FunctionType) and self.allows(found.__func__, bound=True)
        return self._allows_value(found.__func__ if isinstance(found, staticmethod) else found, [])

    def allows(self, function: types.FunctionType, *, bound: bool = False) -> bool:
        """Whether a function may be called, with plain data and, if it is `bound`, the callback."""
        if (function, bound) in self._seen:
            return True
        self._seen.add((function, bound))
        needs = _needs(function.__code__, bound)
        if needs is None or not (needs.computes or self._callback is not None):
            return False
        cells = {name: content_of(cell) for name, cell in cells_of(function).items()}
        names = {**function.__globals__, **{name: each[0] for name, each in cells.items() if each}}
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        return (
            all(map(is_plain, defaults))
            and all(map(self._may_set, needs.writes))
            and all(self._allows_path(names, *path) for path in needs.paths)
            and all(map(self.allows_own, needs.reads))
        )

    def _may_set(self, name: str) -> bool:
        return is_simple(inspect.getattr_static(type(self._callback), name, None))

    def _allows_path(self, names: Mapping[str, Any], first: str, *rest: str) -> bool:
        if first not in names:
            writes = first in ("open", "print") and self._callback is not None
            return (first in _BUILTINS or writes) and hasattr(builtins, first) and is_plain_stream(sys.stdout)
        value, module, attributes = names[first], None, list(rest)
        while isinstance(value, types.ModuleType) and attributes:
            module, name = value.__name__, attributes.pop(0)
            if name not in _ALLOWED.get(module, (name,)) or name not in vars(value):
                return False
            value = vars(value)[name]
        if module is not None and module not in self._modules:
            return False
        if module == "logging" and not is_plain(logging.root):
            return False
        if module is not None and callable(value) and not attributes:
            return True
        return self._allows_value(value, attributes)

    def _allows_value(self, value: Any, attributes: list[str]) -> bool:
        """Whether a value may be used, and be asked for attributes such as its methods."""
        if isinstance(value, types.FunctionType) and origin_of(value) is Origin.USER:
            return not attributes and self.allows(value)
        if isinstance(value, types.FunctionType) and not is_plain([value]):
            return False  # such as one whose closure holds an object of the user's
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            package = str(value.__module__).split(".")[0]
            if package == "builtins":
                return value.__name__ in _BUILTINS and vars(builtins)[value.__name__] is value
            library = origin_of(value) in (Origin.LIBRARY, Origin.STANDARD)
            methods = [inspect.getattr_static(value, name, None) for name in attributes]
            routines = [m for m in methods if inspect.isroutine(getattr(m, "__func__", m))]
            return package in self._modules and library and routines == methods and len(methods) < 2
        return not (attributes and self._callback is None) and is_plain(value)


@functools.lru_cache(maxsize=1024)
def _needs(code: types.CodeType, bound: bool) -> _Needs | None:
    """Returns what a function needs; None if its syntax is not allowed or its source not at hand."""
    node = definition_of(code)
    body = [] if node is None else [node.body] if isinstance(node, ast.Lambda) else node.body
    found = [each for part in body for each in ast.walk(part)]  # each before its parts
    if node is None or not all(isinstance(each, _SYNTAX) for each in found):
        return None
    if bound and not code.co_argcount:
        return None  # its first argument is in `*args`
    outside = stored_in(code, "LOAD_GLOBAL", "LOAD_NAME") | {*code.co_freevars}
    me = code.co_varnames[0] if bound else None
    paths, reads, writes, computes = set[tuple[str, ...]](), set[str](), set[str](), True
    within: set[int] = set()  # parts of dotted names that have been looked at
    for each in found:
        stores = not isinstance(getattr(each, "ctx", ast.Load()), ast.Load)
        if isinstance(each, ast.Attribute):
            own = isinstance(each.value, ast.Name) and each.value.id == me
            if each.attr.startswith("__") or (each.attr in _REFUSED and not own):
                return None
            computes = computes and not stores
        elif not isinstance(each, ast.Name):
            computes = computes and not (stores and isinstance(each, ast.Subscript))
            continue
        if id(each) in within:
            continue
        path = _dotted(each)
        if path is None:  # of what an expression gives
            computes = False
            continue
        within |= {id(part) for part in ast.walk(each)}
        if path[0] == me:
            if len(path) == 1:
                return None  # handed on, or given another value
            reads.add(path[1])
            writes |= {path[1]} if stores and len(path) == 2 else set()
        elif path[0] in outside:
            paths.add(path)
        else:
            computes = computes and len(path) == 1
    return _Needs(frozenset(paths), frozenset(reads), frozenset(writes), computes)


def _dotted(node: ast.AST) -> tuple[str, ...] | None:
    """Returns the names of `a.b.c`; None where the first part is no name."""
    if isinstance(node, ast.Name):
        return (node.id,)
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else None
    return None if inner is None or not isinstance(node, ast.Attribute) else (*inner, node.attr)
