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
from collections.abc import Iterable, Iterator, Mapping
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
_COMPUTING = frozenset({"cmath", "math", "numpy", "keras.ops", "tensorflow._api.v2.math"})
# Of NumPy, next to universal functions and types of numbers: what changes at most an array.
_OF_NUMPY = frozenset(
    {"arange", "array", "clip", "interp", "linspace", "max", "mean", "min", "round", "searchsorted", "sum"}
    | {"where"}
)
# What reading neither changes nor uses up, and what of it `+=` changes.
_NUMBERS = frozenset(each for each in np.sctypeDict.values() if issubclass(each, (np.number, np.bool_)))
_CHANGEABLE = frozenset({dict, list, np.ndarray, set})
_LASTING = frozenset({frozenset, range, tuple}) | _CHANGEABLE | _NUMBERS
# Expressions whose value is held nowhere else.
_NEW = (ast.BinOp, ast.Compare, ast.Constant, ast.Dict, ast.List, ast.ListComp, ast.Set, ast.UnaryOp)
_NOTING = frozenset(
    {"_csv", "_json", "collections", "contextlib", "csv", "itertools", "json", "logging", "math", "mlflow"}
    | {"ntpath", "numpy", "os", "posixpath", "statistics", "string", "sys", "tqdm", "wandb"}
)
_ALLOWED = {"os": ("linesep", "path", "sep"), "sys": ("stderr", "stdout")}  # of these modules
# Whose objects hold on to the whole notebook, and show what they are given.
_SHOWING = frozenset({"IPython", "_pytest", "ipykernel", "ipywidgets", "comm", "google"})
_MOST_OBJECTS = 20_000
# Of longer containers the first and the last items are looked at: a list of losses grows with the training.
_MOST_ITEMS = 1_000


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
    whitelist = _Whitelist(None)
    return isinstance(function, types.FunctionType) and whitelist.allows(function) and not whitelist.writes


class _Whitelist:
    """Decides what a callback's hooks may use, or, without a callback, functions that only compute."""

    def __init__(self, callback: keras.callbacks.Callback | None, *, apart: bool = False) -> None:
        self._callback, self._apart = callback, apart
        self._modules = _COMPUTING if callback is None else _NOTING
        self._functions: set[tuple[types.FunctionType, bool]] = set()  # allowed, or being looked at
        self._kinds: set[type] = set()  # the types of data that functions read which only compute
        self._augments = self._calls_numpy = False

    @property
    def writes(self) -> bool:
        """Whether functions that only compute, all of which are allowed, may write to the data they read."""
        augments = self._augments and not _CHANGEABLE.isdisjoint(self._kinds)
        return augments or (self._calls_numpy and np.ndarray in self._kinds)

    def allows(self, function: Any, *, bound: bool = False) -> bool:
        """Whether a function may be called, with plain data and, if it is `bound`, the callback."""
        if not isinstance(function, types.FunctionType):
            return False
        if (function, bound) in self._functions:
            return True
        self._functions.add((function, bound))
        uses = _uses(function.__code__, bound)
        if uses is None or (self._callback is None and () in uses):
            return False
        cells = {name: content_of(cell) for name, cell in cells_of(function).items()}
        names = {**function.__globals__, **{name: each[0] for name, each in cells.items() if each}}
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        # Keras gives the outermost one numbers.
        given = len(self._functions) == 1 and all(map(is_simple, defaults))
        self._augments |= ("augments",) in uses or (("augments", "argument") in uses and not given)
        return all(map(self._is_data, defaults)) and all(self._allows_use(names, *use) for use in uses)

    def _allows_use(self, names: Mapping[str, Any], kind: str = "", *path: str) -> bool:
        match kind:
            case "own":
                return self.allows_own(*path)
            case "set":
                present = inspect.getattr_static(type(self._callback), path[0], None)
                return not hasattr(type(present), "__set__") and is_plain(present)
            case "super":  # what it finds behind a class
                owner, name = path
                bases = type(self._callback).__mro__
                if "super" in names or names.get(owner) not in bases:
                    return False
                behind = bases[bases.index(names[owner]) + 1 :]
                method = next((vars(base)[name] for base in behind if name in vars(base)), None)
                return self.allows(method, bound=True)
            case "outside":
                return self._allows_path(names, *path)
        return True

    def allows_own(self, name: str) -> bool:
        """Whether what the callback has under a name may be used: a method, a property or a value."""
        inherited = inspect.getattr_static(type(self._callback), name, None)
        if isinstance(inherited, property):
            return self.allows(inherited.fget, bound=True)
        if name == "_model" or hasattr(type(inherited), "__set__"):
            return False
        value = variables_of(self._callback).get(name, inherited)
        if value is inherited and isinstance(value, types.FunctionType):
            return self.allows(value, bound=True)
        if isinstance(value, types.MethodType) and value.__self__ is self._callback:
            return self.allows(value.__func__, bound=True)
        return self._allows_value(value.__func__ if isinstance(value, staticmethod) else value)

    def _allows_path(self, names: Mapping[str, Any], first: str, *rest: str) -> bool:
        if first not in names:
            writes = first in ("open", "print") and self._callback is not None
            return (first in _BUILTINS or writes) and hasattr(builtins, first) and is_plain_stream(sys.stdout)
        value, module, attributes = names[first], "", list(rest)
        while isinstance(value, types.ModuleType) and attributes:
            module, name = value.__name__, attributes.pop(0)
            if name not in _ALLOWED.get(module, (name,)) or name not in vars(value):
                return False
            value = vars(value)[name]
        if module and (module not in self._modules or not (module != "logging" or is_plain(logging.root))):
            return False
        if module and callable(value) and not attributes:
            return self._callback is not None or self._allows_computing(value)
        if self._apart and not module and not callable(value) and not is_simple(value):
            return False
        return not (attributes and self._callback is None) and self._allows_value(value, *attributes)

    def _allows_value(self, value: Any, *attributes: str) -> bool:
        """Whether a value may be used, and be asked for attributes such as its methods."""
        if isinstance(value, types.FunctionType) and origin_of(value) is Origin.USER:
            return not attributes and self.allows(value)
        if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return self._is_data(value)
        package = str(value.__module__).split(".")[0]
        if self._callback is None and not self._allows_computing(value):
            return False
        if package == "builtins":
            return value.__name__ in _BUILTINS and vars(builtins)[value.__name__] is value
        # Its closure may hold an object of the user's.
        is_library_s = origin_of(value) in (Origin.LIBRARY, Origin.STANDARD) and is_plain([value])
        methods = [inspect.isroutine(inspect.getattr_static(value, name, None)) for name in attributes]
        return package in self._modules and is_library_s and len(methods) < 2 and all(methods)

    def _allows_computing(self, function: Any) -> bool:
        """Whether a library's function changes at most an array that it is given."""
        name = getattr(function, "__name__", "")
        of_numpy = isinstance(function, np.ufunc) or module_of(function).split(".")[0] == "numpy"
        self._calls_numpy |= of_numpy and function not in _NUMBERS
        known = isinstance(function, np.ufunc) or function in _NUMBERS or name in _OF_NUMPY
        return not of_numpy or (known and getattr(np, name, None) is function)

    def _is_data(self, value: Any) -> bool:
        """Whether a value is plain and, for functions that only compute, lasts when it is read."""
        parts = _parts_of(value)
        self._kinds |= set(map(type, parts or ()))
        return parts is not None and (self._callback is not None or self._kinds <= _LASTING)


@functools.lru_cache(maxsize=1024)
def _uses(code: types.CodeType, bound: bool) -> frozenset[tuple[str, ...]] | None:
    """Return what a function takes from outside; None if its syntax is not allowed or it has no source.

    That is an attribute of its callback, ("own", name), or one that it sets, ("set", name), a method that
    `super` finds behind a class, ("super", class, name), and dotted names, ("outside", name, ...). The use ()
    is a change of a value or a look into one: more than to compute. With ("augments",) one by `+=` or its
    kind may be a change, too, and with ("augments", "argument") if an argument can be changed.
    """
    node = definition_of(code)
    if node is None or (bound and not code.co_argcount):  # its first argument is in `*args`
        return None
    me = code.co_varnames[0] if bound else None
    outside = stored_in(code, "LOAD_GLOBAL", "LOAD_NAME") | {*code.co_freevars}
    uses, seen = set[tuple[str, ...]](), set[int]()  # parts of what has been looked at, by `id`
    body: list[Any] = [node.body] if isinstance(node, ast.Lambda) else node.body
    nodes = [inner for part in body for inner in ast.walk(part)]
    uses |= set(_augmented(nodes, code))
    for each in nodes:
        renamed = me is not None and me in (getattr(each, "name", None), getattr(each, "arg", None))
        if renamed or not isinstance(each, _SYNTAX):
            return None
        stores = isinstance(getattr(each, "ctx", None), (ast.Store, ast.Del))
        if isinstance(each, ast.Subscript) and stores:
            uses.add(())
        if id(each) in seen or not isinstance(each, (ast.Name, ast.Attribute)):
            continue
        first, *rest = _dotted(each, seen)
        is_own = first == me
        if any(name.startswith("__") for name in rest) or _REFUSED & {*rest[is_own:]}:
            return None
        if is_own and not rest:
            return None  # the callback is handed on
        if is_own:
            uses |= {("own", rest[0])} | ({("set", rest[0])} if stores and len(rest) == 1 else set())
        elif isinstance(each, ast.Attribute) and not stores and (owner := _class_of_super(each, me)):
            uses.add(("super", owner, each.attr))
            seen |= {id(inner) for inner in ast.walk(each)}
        elif first in outside:
            uses |= {("outside", first, *rest)} | ({()} if rest and stores else set())
        elif rest:
            uses.add(())
    return frozenset(uses)


def _augmented(nodes: list[Any], code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Yield uses by `name += ...` where the value of the variable may be held elsewhere, too."""
    new, held = set[int](), {each.arg for each in nodes if isinstance(each, ast.arg)}
    for each in nodes:
        binds = isinstance(each, (ast.AnnAssign, ast.Assign, ast.NamedExpr)) and isinstance(each.value, _NEW)
        if binds or isinstance(each, ast.AugAssign):
            new |= set(map(id, getattr(each, "targets", None) or [each.target]))
    stored = (each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    held |= {each.id for each in stored if id(each) not in new}
    for target in (each.target for each in nodes if isinstance(each, ast.AugAssign)):
        if isinstance(target, ast.Name) and target.id in held:
            yield ("augments",)
        elif isinstance(target, ast.Name) and target.id in inspect.getargs(code)[0]:
            yield ("augments", "argument")


def _dotted(node: ast.AST, seen: set[int]) -> tuple[str, ...]:
    """Return the names of `a.b.c`, and take in its parts; the first is empty where `a` is no name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
        seen.add(id(node))
    return (node.id if isinstance(node, ast.Name) else "", *names[::-1])


def _class_of_super(node: ast.Attribute, me: str | None) -> str | None:
    """Return the name of the class in `super().hook` or `super(Class, self).hook`."""
    match node.value:
        case ast.Call(func=ast.Name("super"), args=[], keywords=[]) if me:
            return "__class__"
        case ast.Call(func=ast.Name("super"), args=[ast.Name(owner), ast.Name(other)], keywords=[]):
            return owner if other == me else None
    return None


def is_plain(value: Any) -> bool:
    """Whether a value is data, or an object that can only keep and write values."""
    return _parts_of(value) is not None


def _parts_of(value: Any) -> list[Any] | None:
    """Return what a plain value consists of, apart from numbers and texts; None if it is not plain."""
    waiting, objects = [value], dict[int, Any]()  # by `id`, which a reference keeps
    while waiting:
        each = waiting.pop()
        if id(each) in objects or is_simple(each):
            continue
        objects[id(each)] = each
        if len(objects) > _MOST_OBJECTS or not _is_allowed(each, outermost=each is value):
            return None
        waiting.extend(_references_of(each))
    return [*objects.values()]


def is_plain_stream(stream: Any) -> bool:
    """Whether what is written to a stream reaches no code of the user's."""
    while stream is not None:
        if origin_of(type(stream)) is Origin.USER:
            return False
        stream = getattr(stream, "buffer", None) or getattr(stream, "raw", None)
    return True


def _is_allowed(thing: Any, *, outermost: bool) -> bool:
    if isinstance(thing, (types.FunctionType, types.BuiltinFunctionType)):
        return not outermost and origin_of(thing) in (Origin.LIBRARY, Origin.STANDARD)
    if isinstance(thing, np.ndarray) and thing.dtype.hasobject:
        return False
    if isinstance(thing, (types.ModuleType, types.GeneratorType, weakref.ReferenceType)):
        return False
    kind: Any = thing if isinstance(thing, type) else type(thing)
    return _is_apart(kind) and (kind is thing or not (outermost and callable(thing)))


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
    if kind in (list, tuple, set, frozenset, collections.deque):
        return _ends(thing)
    return [*gc.get_referents(thing), *variables_of(thing).values()]


def _ends(items: Any) -> list[Any]:
    ends = list(islice(items, _MOST_ITEMS))
    if len(items) > _MOST_ITEMS and hasattr(items, "__reversed__"):
        ends += islice(reversed(items), _MOST_ITEMS)
    return ends
