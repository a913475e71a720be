"""Whether a user's method reads Python's state: a trace of it would hold for ever what that was.

Keras runs `Metric.result`, `reset_state` and `get_metrics_result` operation by operation, each time anew.
Their code is read, and that of the user's functions that it names, with what these names stand for now.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras import methods

__all__ = ["reads_python"]

_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, np.ndarray, np.generic)
# Of attributes, these are decided when an object is made.
_FIXED = frozenset({"name", "dtype"})
_OF_TRACES = (tf.Variable, tf.Tensor, keras.Variable, keras.KerasTensor, tf.DType, tf.TensorShape)
_LAYERS = (keras.metrics.Metric, keras.layers.Layer, keras.losses.Loss, keras.optimizers.Optimizer)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)
_CHANGING = frozenset({"random", "time", "os", "datetime", "secrets", "uuid"})
_STORING = ("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL")


def reads_python(owner: Any, method: Any) -> bool:
    """Whether a method's result may depend on what Python's objects hold when it runs.

    Args:
        owner: a metric or a model.
        method: of it, bound.
    """
    if methods.is_stock_method(method):
        return False
    function = getattr(method, "__func__", method)
    if not isinstance(function, types.FunctionType):
        return True
    seen: list[Any] = []
    waiting = [function]
    while waiting:
        function = waiting.pop()
        if function in seen or methods.is_stock_method(function):
            continue
        seen.append(function)
        if not _is_users(function):
            if function is seen[0] and _reads_plain_attribute(owner, function):
                return True
            continue
        for value, changes in _named(owner, function):
            if isinstance(value, types.FunctionType):
                waiting.append(value)
            elif changes:
                return True
    return False


def _named(owner: Any, function: types.FunctionType) -> Iterator[tuple[Any, bool]]:
    """Yields what the names in a function stand for, and whether that may be another state some time."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        value = _content(cell)
        yield value, _is_set_again(cell, name) if _is_constant(value) else _keeps_state(value)
    for name in code.co_names:
        yield from _global(function, name)
        value = inspect.getattr_static(owner, name, None)
        if isinstance(value, property):
            value = value.fget
        elif not isinstance(value, types.FunctionType):
            value = getattr(owner, name, None)
        yield value, name not in _FIXED and (isinstance(value, _PLAIN) or _keeps_state(value))


def _global(function: types.FunctionType, name: str) -> Iterator[tuple[Any, bool]]:
    space = function.__globals__
    value = space.get(name)
    if not isinstance(value, types.ModuleType):
        yield value, _is_rebound(space, name) if _is_constant(value) else _keeps_state(value)
        return
    root = value.__name__.split(".")[0]
    named = set(function.__code__.co_names)
    if root in _CHANGING or (root == "numpy" and "random" in named):
        yield value, True
    elif _is_users(value):
        for inner in named & vars(value).keys():
            found = vars(value)[inner]
            yield found, _is_constant(found) or _keeps_state(found)


def _is_constant(value: Any) -> bool:
    """Whether a value cannot change itself, although its name may be given another."""
    return isinstance(value, (bool, int, float, complex, str, bytes, type(None), np.generic))


def _keeps_state(value: Any) -> bool:
    """Whether an object may hold something else some time that a trace does not see."""
    if isinstance(value, (*_OF_TRACES, *_LAYERS, *_CODE)) or _is_constant(value):
        return isinstance(value, type) and _is_users(value) and not issubclass(value, _LAYERS)
    return not isinstance(value, types.ModuleType)


def _is_rebound(space: dict[str, Any], name: str) -> bool:
    """Whether a function of a module gives a global name another value."""
    return any(
        _stores(code, name)
        for value in list(space.values())
        for member in ([value, *vars(value).values()] if isinstance(value, type) else [value])
        if (code := getattr(getattr(member, "__func__", member), "__code__", None)) is not None
    )


def _is_set_again(cell: types.CellType, name: str) -> bool:
    """Whether a function that shares a cell of a closure gives it another value."""
    closures = [each for each in gc.get_referrers(cell) if isinstance(each, tuple)]
    functions = [f for each in closures for f in gc.get_referrers(each) if isinstance(f, types.FunctionType)]
    return any(_stores(function.__code__, name) for function in functions)


def _stores(code: Any, name: str) -> bool:
    if not isinstance(code, types.CodeType):
        return False
    if any(each.opname in _STORING and each.argval == name for each in dis.get_instructions(code)):
        return True
    return any(_stores(inner, name) for inner in code.co_consts)


def _reads_plain_attribute(owner: Any, function: types.FunctionType) -> bool:
    names = (name for name in function.__code__.co_names if name not in _FIXED)
    return any(isinstance(getattr(owner, name, None), _PLAIN) for name in names)


def _is_users(thing: Any) -> bool:
    """Whether something was written by the user, and not by an installed package or Python's own authors."""
    name = getattr(thing, "__globals__", {}).get("__name__") or getattr(thing, "__module__", None)
    name = thing.__name__ if isinstance(thing, types.ModuleType) else name
    module = sys.modules.get(str(name))
    file = str(getattr(module, "__file__", "") or "")
    root = str(name).split(".")[0]
    return (
        not ({"site-packages", "dist-packages"} & set(file.split("/")))
        and root not in sys.stdlib_module_names
    )


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
