"""Whether a user's metrics read Python's state: a trace of their methods would hold for ever what that was.

Keras runs `Metric.result`, `reset_state`, `get_metrics_result` and the `metrics` of a model operation by
operation, each time anew. Their code is read, and that of the functions of the user's that it names, with
what these names stand for now.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from overlap_train._inspection.code import function_of, names_in, stores
from overlap_train._inspection.lookup import MISSING, look_up
from overlap_train._inspection.origins import SIMPLE, Origin, module_of, origin_of
from overlap_train._inspection.reads import Place, closed_over, named_in
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models

__all__ = [
    "Read",
    "in_words",
    "methods_of_metrics",
    "metrics_by_python",
    "names_metrics_by_python",
    "reads_of",
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
    """A place that Python may change, and the code that reads it.

    Attributes:
        place: without a name if the code cannot be read, or does not say which place it is.
        function: whose code it is; None if it cannot be read.
    """

    place: Place
    function: types.FunctionType | None


def reads_of(owner: Any, method: Any) -> Iterator[Read]:
    """Yields what a method reads and Python may change, in the functions of the user's that it names, too.

    Args:
        owner: a metric or a model.
        method: of it, bound or as its class has it.
    """
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
            plain = (place for place in _attributes(owner, function) if isinstance(place.found, _PLAIN))
            yield from (Read(place, function) for place in plain if function is seen[0])
            continue
        for place in (*closed_over(function), *named_in(function), *_attributes(owner, function)):
            if isinstance(place.found, types.FunctionType):
                waiting.append(place.found)
            elif _may_change(place, owner, function):
                yield Read(place, function)


def in_words(place: Place) -> str:
    """Returns what a method does that reads a place."""
    if not place.name:
        return "may depend on Python's state"
    name = f"{place.name}.random" if place.found is np else place.name
    return f"reads {name!r}, which Python may change"


def _attributes(owner: Any, function: types.FunctionType) -> Iterator[Place]:
    """Yields what the names in a function are as attributes of an object, but for what is fixed."""
    for name in names_in(function.__code__) - _FIXED:
        found = function_of(look_up(owner, name))
        if found is not MISSING:
            yield Place(owner, name, found, name)


def _may_change(place: Place, owner: Any, function: types.FunctionType) -> bool:
    """Whether code may find another state in a place some time."""
    value, is_constant = place.found, place.found is MISSING or isinstance(place.found, _CONSTANT)
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
