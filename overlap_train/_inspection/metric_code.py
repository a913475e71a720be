"""Whether a user's metrics read Python's state, and the plain values with which they compute: `self.beta`.

Keras runs `Metric.result`, `reset_state`, `get_metrics_result` and the `metrics` of a model operation by
operation, each time anew; a trace would hold for ever what they read. So their code is read, and that of the
functions of the user's that it names, with what these names stand for now. A trace will do for as long as the
plain values are what they were; that is asked again after each hook that may have set one.
"""

from __future__ import annotations

import enum
import gc
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from overlap_train._inspection.code import (
    MISSING,
    SIMPLE,
    Origin,
    function_of,
    functions_in,
    is_simple,
    look_up,
    module_of,
    names_in,
    origin_of,
    stored_in,
    stores,
    variables_of,
)
from overlap_train._inspection.reads import Place, change_between, closed_over, named_in, try_reading
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models

__all__ = [
    "NO_CONSTANTS",
    "Constants",
    "constants_of",
    "metrics_by_python",
    "names_metrics_by_python",
    "reads_python",
]


_CONSTANT = (*SIMPLE, np.generic)
_PLAIN = (*SIMPLE[:-1], list, tuple, dict, set, np.ndarray, np.generic)
# Of attributes, these are decided when an object is made.
_FIXED = frozenset({"name", "dtype"})
_OF_TRACES = (tf.Variable, tf.Tensor, keras.Variable, keras.KerasTensor, tf.DType, tf.TensorShape)
_LAYERS = (keras.metrics.Metric, keras.layers.Layer, keras.losses.Loss, keras.optimizers.Optimizer)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type)
_CHANGING = frozenset({"random", "time", "os", "datetime", "secrets", "uuid"})


def metrics_by_python(model: keras.Model) -> str | None:
    """Returns why a user's metrics are reset, named or read by Python's state, or None if they are not.

    Keras runs these methods operation by operation, each time anew. Those that touch variables, tensors and
    other metrics only can be compiled; those whose code reads what Python may change cannot.
    """
    if not models.is_stock_method(model.reset_metrics):
        return f"{type(model).__name__}.reset_metrics may depend on Python's state"
    named = (model, "metrics", function_of(look_up(model, "metrics")))
    for owner, name, method in (named, *methods_of_metrics(model)):
        place = read_of_python(owner, method)
        if place is not None:
            return f"{type(owner).__name__}.{name} {in_words(place)}"
    return None


def methods_of_metrics(model: keras.Model) -> list[tuple[Any, str, Any]]:
    """Returns what sets metrics back and what reads them: whose it is, its name, and the method."""
    found = [(model, "get_metrics_result", model.get_metrics_result)]
    for metric in keras_metrics.metric_leaves(model):
        found += [(metric, name, getattr(metric, name)) for name in ("reset_state", "result")]
    return found


def names_metrics_by_python(model: keras.Model) -> bool:
    """Whether a model of the user's says by Python's state which metrics it has."""
    return reads_python(model, function_of(look_up(model, "metrics")))


def reads_python(owner: Any, method: Any) -> bool:
    """Whether a method's result may depend on what Python's objects hold: see `read_of_python`."""
    return read_of_python(owner, method) is not None


def read_of_python(owner: Any, method: Any) -> Place | None:
    """Returns the first place that a method reads and Python may change, or None if there is none."""
    return next((read.place for read in reads_of(owner, method)), None)


class Read(NamedTuple):
    """A place that Python may change, and the code that reads it."""

    place: Place
    function: types.FunctionType | None


def reads_of(owner: Any, method: Any) -> Iterator[Read]:
    """Yields what a method reads and Python may change, in the functions of the user's that it names, too."""
    if models.is_stock_method(method):
        return
    function = getattr(method, "__func__", method)
    if not isinstance(function, types.FunctionType):
        yield Read(Place(owner, "", MISSING, ""), None)
        return
    seen: list[Any] = []
    waiting = [function]
    while waiting:
        function = waiting.pop()
        if function in seen or models.is_stock_method(function):
            continue
        seen.append(function)
        if origin_of(function) is not Origin.USER:
            plain = (place for place in _attributes(owner, function) if isinstance(place.value, _PLAIN))
            yield from (Read(place, function) for place in plain if function is seen[0])
            continue
        for place in (*closed_over(function), *named_in(function), *_attributes(owner, function)):
            if isinstance(place.value, types.FunctionType):
                waiting.append(place.value)
            elif _may_change(place, owner, function):
                yield Read(place, function)


def in_words(place: Place) -> str:
    """Returns what a method does that reads a place."""
    if not place.name:
        return "may depend on Python's state"
    name = f"{place.name}.random" if place.value is np else place.name
    return f"reads {name!r}, which Python may change"


def _attributes(owner: Any, function: types.FunctionType) -> Iterator[Place]:
    """Yields what the names in a function are as attributes of an object, but for what is fixed."""
    for name in names_in(function.__code__) - _FIXED:
        found = function_of(look_up(owner, name))
        if found is not MISSING:
            yield Place(owner, name, found, name)


def _may_change(place: Place, owner: Any, function: types.FunctionType) -> bool:
    """Whether code may find another state in a place some time."""
    value, is_constant = place.value, place.value is MISSING or isinstance(place.value, _CONSTANT)
    if isinstance(value, types.ModuleType):
        root = module_of(value).split(".")[0]
        return root in _CHANGING or (root == "numpy" and "random" in names_in(function.__code__))
    if place.owner is owner:
        return isinstance(value, _PLAIN) or (not is_constant and _keeps_state(value))
    if not is_constant:
        return _keeps_state(value)
    if isinstance(place.owner, types.CellType):
        return _is_set_again(place.owner, place.name)
    return place.owner is not function.__globals__ or _is_rebound(place.owner, place.name)


def _keeps_state(value: Any) -> bool:
    """Whether an object may hold something else some time that a trace does not see."""
    if isinstance(value, (*_OF_TRACES, *_LAYERS, *_CODE)):
        return isinstance(value, type) and origin_of(value) is Origin.USER and not issubclass(value, _LAYERS)
    return True


def _is_rebound(space: dict[str, Any], name: str) -> bool:
    """Whether a function of a module gives a global name another value."""
    members = (
        member
        for value in list(space.values())
        for member in ([value, *vars(value).values()] if isinstance(value, type) else [value])
    )
    codes = (getattr(getattr(member, "__func__", member), "__code__", None) for member in members)
    return any(stores(code, name) for code in codes if isinstance(code, types.CodeType))


def _is_set_again(cell: types.CellType, name: str) -> bool:
    """Whether a function that shares a cell of a closure gives it another value."""
    closures = [each for each in gc.get_referrers(cell) if isinstance(each, tuple)]
    functions = [f for each in closures for f in gc.get_referrers(each) if isinstance(f, types.FunctionType)]
    return any(stores(function.__code__, name) for function in functions)


# What is larger is not looked through.
_MOST_BYTES, _MOST_ITEMS, _MOST_LEVELS = 1 << 20, 1_000, 4
_STORES = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF")
_STORES_ITEMS = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
_STORING = frozenset({"setattr", "delattr", "__setattr__", "__dict__", "vars", "globals", "exec", "eval"})
_CHANGING_ITEMS = frozenset({"add", "append", "appendleft", "clear", "discard", "extend", "fill", "insert"})
_CHANGING_ITEMS |= {"itemset", "pop", "popitem", "popleft", "put", "remove", "resize", "reverse"}
_CHANGING_ITEMS |= {"setdefault", "sort", "update"}
_WHEN_MADE = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "from_config", "get_config"})
_MAKING_OR_SHOWING = _WHEN_MADE | {"__eq__", "__hash__", "__repr__", "__str__", "__init_subclass__"}
_MAKING_OR_SHOWING |= {"__setattr__", "__delattr__", "__replace__", "__match_args__", "__getstate__"}


class Constants:
    """What metrics compute with of Python, as it was when they were traced."""

    def __init__(self, roots: Sequence[Any] = ()) -> None:
        self._roots = roots
        self._reading = try_reading(roots)

    def __bool__(self) -> bool:
        return bool(self._roots)

    def changed(self) -> str | None:
        """Returns what has been set to another value since, in words; None if nothing was."""
        return change_between(self._reading, try_reading(self._roots)) if self._roots else None


NO_CONSTANTS = Constants()


class _NotHeldError(Exception):
    """What a method reads is no plain value, or is set by itself; with what it does, in words."""


def constants_of(model: keras.Model) -> tuple[Constants, str | None]:
    """Returns what the metrics of a model are set back and read with of Python."""
    named = function_of(look_up(model, "metrics"))
    if not models.is_stock_method(model.reset_metrics) or reads_python(model, named):
        return NO_CONSTANTS, metrics_by_python(model)
    for owner, name, method in methods_of_metrics(model):
        try:
            _require_plain(owner, method)
        except _NotHeldError as error:
            return NO_CONSTANTS, f"{type(owner).__name__}.{name} {error}"
    roots = [metric for metric in keras_metrics.metric_leaves(model) if not _reads_nothing(metric)]
    own = [] if models.is_stock_method(model.get_metrics_result) else [model.get_metrics_result]
    return Constants([*roots, *own]), None


def _reads_nothing(metric: keras.metrics.Metric) -> bool:
    """Whether a metric is one of Keras's whose result is made of its variables alone."""
    simple = isinstance(metric, (keras.metrics.Mean, keras.metrics.Sum))
    return simple and models.is_stock_method(type(metric))


def _require_plain(owner: Any, method: Any) -> None:
    """Raises _NotHeldError if something that a method reads is no plain value, or its own code sets it."""
    waiting = [(owner, read) for read in reads_of(owner, method)]
    looked_into: list[Any] = []
    while waiting:
        own, (place, function) = waiting.pop()
        # Of a library's function not all is read that it names.
        if function is None or not place.name or origin_of(function) is not Origin.USER:
            raise _NotHeldError(in_words(place))
        if _is_plain_data(place.value):
            _require_kept(place, (own, place.owner), function)
        elif not any(place.value is each for each in looked_into):
            looked_into.append(place.value)
            waiting += [(place.value, read) for read in _reads_inside(place, function)]


def _reads_inside(place: Place, function: types.FunctionType) -> Iterator[Read]:
    """Yields what code finds in an object of a class of the user's, such as a configuration."""
    thing = place.value
    kind = thing if isinstance(thing, type) else type(thing)
    is_container = isinstance(thing, (dict, list, tuple, set, frozenset))
    if origin_of(kind) is not Origin.USER or is_container or not all(map(_is_harmless, kind.__mro__)):
        raise _NotHeldError(in_words(place))
    plain = {name for name, value in variables_of(thing).items() if _is_plain_data(value)}
    for name in names_in(function.__code__) | (set() if thing is kind else plain):  # as for `==`
        found = look_up(thing, name)
        member = function_of(found)
        if isinstance(member, types.FunctionType):
            yield from reads_of(thing, member)
        elif found is not MISSING:
            yield Read(Place(thing, name, found), function)


def _is_harmless(kind: type) -> bool:
    """Whether Python calls nothing in a class without its name, but to make, show or compare an object."""
    if origin_of(kind) is not Origin.USER:
        return kind in (object, enum.Enum) or origin_of(kind) is Origin.STANDARD
    members = ((name, function_of(member)) for name, member in vars(kind).items() if name.startswith("__"))
    return {name for name, member in members if isinstance(member, types.FunctionType)} <= _MAKING_OR_SHOWING


def _require_kept(place: Place, owners: tuple[Any, ...], function: types.FunctionType) -> None:
    """Raises _NotHeldError if code that Keras calls of an object may set a value that it reads."""
    itself = f"reads {place.name!r}, which it may set itself"
    changes = not is_simple(place.value) and not isinstance(place.value, (tuple, frozenset, np.generic))
    called = [own for owner in owners for own in _called(owner, function)]
    for code in (function.__code__, *(own.__code__ for own in called)):
        names, stored = names_in(code), stored_in(code, *_STORES)
        if place.name in stored or not names.isdisjoint(_STORING):
            raise _NotHeldError(itself)
        if changes and (stored_in(code, *_STORES_ITEMS) or not names.isdisjoint(_CHANGING_ITEMS)):
            raise _NotHeldError(itself)


def _called(owner: Any, function: types.FunctionType) -> list[types.FunctionType]:
    """Returns the functions of an object's class that Keras or a function calls, and that these call."""
    if isinstance(owner, (dict, types.CellType)):
        return []
    kinds = (owner if isinstance(owner, type) else type(owner)).__mro__
    own = [kind for kind in kinds if origin_of(kind) in (Origin.USER, Origin.LIBRARY)]
    members = {name for kind in own for name in vars(kind)} - _MAKING_OR_SHOWING
    by_keras = {name for kind in kinds if origin_of(kind) is Origin.TRAINING for name in vars(kind)}
    new = {name for name in members if name in by_keras or name.startswith("__")}
    new |= members & names_in(function.__code__)
    named: set[str] = set()
    found: list[types.FunctionType] = []
    while new:
        named |= new
        held = [vars(kind)[name] for name in new for kind in own if name in vars(kind)]
        functions = [each for member in held for each in functions_in(member)]
        found += functions
        new = members.intersection(name for each in functions for name in names_in(each.__code__)) - named
    return found


def _is_plain_data(value: Any, levels: int = _MOST_LEVELS) -> bool:
    """Whether a value is a number, a text, a small array, or a small container of these."""
    if is_simple(value):
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return not value.dtype.hasobject and value.nbytes <= _MOST_BYTES
    if not isinstance(value, (tuple, list, dict, set, frozenset)) or origin_of(type(value)) is Origin.USER:
        return False
    if len(value) > _MOST_ITEMS or levels == 0:
        return False
    items = [each for pair in value.items() for each in pair] if isinstance(value, dict) else value
    return all(_is_plain_data(each, levels - 1) for each in items)
