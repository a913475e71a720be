"""The one whitelist of syntax: hooks that merely note their arguments, and functions that only compute.

A hook that keeps, counts or prints its arguments cannot tell when it is called, and a training cannot tell
that it was. Such a hook may use its arguments, plain attributes of its callback, some of Python's functions
and modules, and functions of its kind. Plain are data, and objects of libraries that lead neither to the
user's code nor to the training. Any other code is assumed to do anything, and so is code without a source.
"""

from __future__ import annotations

import ast
import builtins
import collections
import functools
import gc
import inspect
import logging
import sys
import types
import weakref
from collections.abc import Iterable, Mapping, Set
from itertools import islice
from typing import Any

import keras
import numpy as np

from overlap_train._inspection.attributes import variables_of
from overlap_train._inspection.code import (
    Origin,
    cells_of,
    content_of,
    definition_of,
    is_simple,
    module_of,
    origin_of,
    stored_in,
)
from overlap_train._keras import models as keras_models

_MOST_OBJECTS = 20_000
# Of longer containers the first and the last items are looked at: a list of losses grows with the training.
_MOST_ITEMS = 1_000
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
# Whose objects hold on to the whole notebook, and show what they are given.
_SHOWING = frozenset({"IPython", "_pytest", "ipykernel", "ipywidgets", "comm", "google"})


def is_plain(value: Any) -> bool:
    """Whether a value is data, or an object that can only keep and write values."""
    waiting, objects = [value], dict[int, Any]()  # by `id`, which a reference keeps
    while waiting:
        each = waiting.pop()
        if id(each) in objects or is_simple(each):
            continue
        objects[id(each)] = each
        if len(objects) > _MOST_OBJECTS or not _is_allowed(each, outermost=each is value):
            return False
        waiting.extend(_references_of(each))
    return True


def is_plain_stream(stream: Any) -> bool:
    """Whether what is written to a stream reaches no code of the user's."""
    while stream is not None:
        if origin_of(type(stream)) is Origin.USER:
            return False
        stream = getattr(stream, "buffer", None) or getattr(stream, "raw", None)
    return True


def _is_allowed(thing: Any, *, outermost: bool) -> bool:
    kind: Any = thing if isinstance(thing, type) else type(thing)
    if isinstance(thing, type):
        return _is_apart(kind)
    if isinstance(thing, (types.FunctionType, types.BuiltinFunctionType)):
        return not outermost and origin_of(thing) in (Origin.LIBRARY, Origin.STANDARD)
    if isinstance(thing, np.ndarray) and thing.dtype.hasobject:
        return False
    if isinstance(thing, (types.ModuleType, types.GeneratorType, weakref.ReferenceType, np.ufunc)):
        return False
    if outermost and callable(thing):
        return False
    return _is_apart(kind)


@functools.lru_cache(maxsize=1024)
def _is_apart(kind: Any) -> bool:
    """Whether neither a class nor one of its bases is the user's, Keras's or TensorFlow's."""
    return not {Origin.USER, Origin.TRAINING} & {origin_of(base) for base in inspect.getmro(kind)}


def _references_of(thing: Any) -> Iterable[Any]:
    kind = type(thing)
    if module_of(kind).split(".")[0] in _SHOWING or isinstance(thing, type):
        return ()
    if isinstance(thing, logging.Logger):  # the manager knows the loggers of everybody
        return (*thing.handlers, *thing.filters, thing.parent if thing.propagate else None)
    if isinstance(thing, types.FunctionType):
        return (thing.__closure__, thing.__defaults__, thing.__kwdefaults__)
    if kind in (dict, collections.OrderedDict):
        return [*_ends(thing.keys()), *_ends(thing.values())]
    if kind in _SEQUENCES:
        return _ends(thing)
    return [*gc.get_referents(thing), *variables_of(thing).values()]


def _ends(items: Any) -> list[Any]:
    ends = list(islice(items, _MOST_ITEMS))
    if len(items) > _MOST_ITEMS and hasattr(items, "__reversed__"):
        ends += islice(reversed(items), _MOST_ITEMS)
    return ends


_SYNTAX: tuple[type[ast.AST], ...] = (
    *(ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Break, ast.Continue, ast.Delete, ast.ExceptHandler),
    *(ast.Expr, ast.For, ast.FunctionDef, ast.If, ast.Pass, ast.Return, ast.Try, ast.While, ast.With),
    *(ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.Dict, ast.DictComp),
    *(ast.FormattedValue, ast.GeneratorExp, ast.IfExp, ast.JoinedStr, ast.Lambda, ast.List, ast.ListComp),
    *(ast.Name, ast.NamedExpr, ast.Set, ast.SetComp, ast.Slice, ast.Starred, ast.Subscript, ast.Tuple),
    *(ast.UnaryOp, ast.arg, ast.arguments, ast.boolop, ast.cmpop, ast.comprehension, ast.expr_context),
    *(ast.keyword, ast.operator, ast.unaryop, ast.withitem),
)
# Ways from data to the code that has made it, from a logger to all others, and to what is stored as code.
_REFUSED = frozenset(
    {"ag_frame", "cr_frame", "f_back", "gi_frame", "tb_frame"}
    | {"getChild", "getLogger", "load", "manager", "root"}
)
_BUILTINS = frozenset(
    {"Exception", "IndexError", "KeyError", "TypeError", "ValueError", "abs", "all", "any", "bool", "dict"}
    | {"divmod", "enumerate", "filter", "float", "format", "int", "isinstance", "len", "list", "map", "max"}
    | {"min", "pow", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip"}
)
_COMPUTING = frozenset({"builtins", "cmath", "math", "numpy", "keras.ops", "tensorflow._api.v2.math"})
_NOTING = frozenset(
    {"_csv", "_json", "builtins", "collections", "contextlib", "csv", "itertools", "json", "logging"}
    | {"math", "mlflow", "ntpath", "numpy", "os", "posixpath", "statistics", "string", "sys", "tqdm", "wandb"}
)
_ALLOWED = {"os": ("linesep", "path", "sep"), "sys": ("stderr", "stdout")}  # of these modules


def only_notes(callback: keras.callbacks.Callback, hooks: Iterable[str], *, apart: bool = False) -> bool:
    """Whether hooks of a callback keep, count or print their arguments, and do nothing else.

    With `apart` they keep them in the callback: what others hold too, a model's code may read.
    """
    kind: Any = type(callback)
    if hasattr(kind, "__getattr__") or kind.__setattr__ is not object.__setattr__:
        return False
    whitelist = _Whitelist(callback, apart=apart)
    return all(callable(getattr(callback, hook)) and whitelist.allows_own(hook) for hook in hooks)


def only_computes(function: Any) -> bool:
    """Whether nobody can notice that a function of numbers is called once more."""
    if isinstance(function, keras.optimizers.schedules.LearningRateSchedule):
        return keras_models.is_stock_method(type(function).__call__)
    if isinstance(function, types.MethodType):
        return function.__name__ == "__call__" and only_computes(function.__self__)
    return isinstance(function, types.FunctionType) and _Whitelist(None).allows(function)


class _RefusedError(Exception):
    """Code has more than the whitelist knows."""


class _Needs(ast.NodeVisitor):
    """Collects what a function of allowed syntax takes from outside of itself."""

    def __init__(self, outside: Set[str], me: str | None) -> None:
        self._outside, self._me = outside, me
        self.paths = set[tuple[str, ...]]()  # dotted names that begin with a name from outside
        self.inherited = set[tuple[str, str]]()  # methods called through `super`: a class and a name
        self.reads, self.writes = set[str](), set[str]()  # attributes of the callback
        self.computes = True  # it sets no attribute and no item, and reads no attribute of a value

    def generic_visit(self, node: ast.AST) -> None:
        if not isinstance(node, _SYNTAX):
            raise _RefusedError
        if self._me is not None and self._me in (getattr(node, "name", None), getattr(node, "arg", None)):
            raise _RefusedError  # another thing by the callback's name
        super().generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.computes = self.computes and isinstance(node.ctx, ast.Load)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._take((node.id,), stores=not isinstance(node.ctx, ast.Load))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        stores, path, owner = not isinstance(node.ctx, ast.Load), _dotted(node), self._class_of_super(node)
        self.computes = self.computes and not stores and path is not None
        if path is not None:
            self._take(path, stores=stores)
        elif node.attr.startswith("__") or node.attr in _REFUSED:
            raise _RefusedError
        elif owner is not None and not stores:
            self.inherited.add((owner, node.attr))
        else:  # of what an expression gives
            self.visit(node.value)

    def _take(self, path: tuple[str, ...], *, stores: bool) -> None:
        first, *rest = path
        is_own = first == self._me
        if any(name.startswith("__") for name in rest) or _REFUSED & {*rest[is_own:]}:
            raise _RefusedError
        if is_own and not rest:
            raise _RefusedError  # the callback is handed on, or its name is assigned to
        if is_own:
            self.reads.add(rest[0])
            self.writes |= {rest[0]} if stores and len(rest) == 1 else set()
        elif first in self._outside:
            self.paths.add(path)
        else:
            self.computes = self.computes and not rest

    def _class_of_super(self, node: ast.Attribute) -> str | None:
        """Return the name of the class in `super().hook` or `super(Class, self).hook`."""
        match node.value:
            case ast.Call(func=ast.Name("super"), args=[], keywords=[]) if self._me:
                return "__class__"
            case ast.Call(func=ast.Name("super"), args=[ast.Name(owner), ast.Name(self._me)], keywords=[]):
                return owner
        return None


class _Whitelist:
    """Decides what a callback's hooks may use, or, without a callback, functions that only compute."""

    def __init__(self, callback: keras.callbacks.Callback | None, *, apart: bool = False) -> None:
        self._callback, self._apart = callback, apart
        self._modules = _COMPUTING if callback is None else _NOTING
        self._functions: set[tuple[types.FunctionType, bool]] = set()  # allowed, or being looked at

    def allows_own(self, name: str) -> bool:
        """Whether what the callback has under a name may be used: a method, a property or a value."""
        inherited = inspect.getattr_static(type(self._callback), name, None)
        if isinstance(inherited, property):
            return self._allows_method(inherited.fget)
        if name == "_model" or hasattr(type(inherited), "__set__"):
            return False
        value = variables_of(self._callback).get(name, inherited)
        if value is inherited and isinstance(value, types.FunctionType):
            return self._allows_method(value)
        if isinstance(value, types.MethodType) and value.__self__ is self._callback:
            return self._allows_method(value.__func__)
        return self._allows_value(value.__func__ if isinstance(value, staticmethod) else value, [])

    def _allows_method(self, function: Any) -> bool:
        return isinstance(function, types.FunctionType) and self.allows(function, bound=True)

    def _allows_inherited(self, names: Mapping[str, Any], owner: str, name: str) -> bool:
        """Whether what `super` finds behind a class may be called."""
        bases = type(self._callback).__mro__
        if "super" in names or names.get(owner) not in bases:
            return False
        behind = bases[bases.index(names[owner]) + 1 :]
        return self._allows_method(next((vars(base)[name] for base in behind if name in vars(base)), None))

    def allows(self, function: types.FunctionType, *, bound: bool = False) -> bool:
        """Whether a function may be called, with plain data and, if it is `bound`, the callback."""
        if (function, bound) in self._functions:
            return True
        self._functions.add((function, bound))
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
            and all(self._allows_inherited(names, *each) for each in needs.inherited)
        )

    def _may_set(self, name: str) -> bool:
        present = inspect.getattr_static(type(self._callback), name, None)
        return not hasattr(type(present), "__set__") and is_plain(present)

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
        if self._apart and module is None and not callable(value) and not is_simple(value):
            return False
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
    """Return what a function needs; None if its syntax is not allowed or it has no source."""
    node = definition_of(code)
    if node is None or (bound and not code.co_argcount):  # its first argument is in `*args`
        return None
    outside = stored_in(code, "LOAD_GLOBAL", "LOAD_NAME") | {*code.co_freevars}
    needs = _Needs(outside, code.co_varnames[0] if bound else None)
    try:
        for part in [node.body] if isinstance(node, ast.Lambda) else node.body:
            needs.visit(part)
    except _RefusedError:
        return None
    return needs


def _dotted(node: ast.AST) -> tuple[str, ...] | None:
    """Return the names of `a.b.c`; None where the first part is no name."""
    if isinstance(node, ast.Name):
        return (node.id,)
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else None
    return None if inner is None or not isinstance(node, ast.Attribute) else (*inner, node.attr)
