"""Whose code a method is: Keras's own, a library's that has put itself in its place, or the user's.

Leans on `KerasTrainer`, and on the closure of `filter_traceback` in which Keras's methods lie. Any
thread.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

import keras

from overlap_train._keras.names import KerasTrainer

__all__ = [
    "KerasTrainer",
    "codes_of",
    "is_replaced",
    "is_stock_method",
    "method_cell",
    "overriding_class",
    "patched_by",
]


# As Keras made them, whatever a library puts in their place later.
_STOCK: dict[str, Any] = {"fit": KerasTrainer.fit, "evaluate": KerasTrainer.evaluate}


def overriding_class(model: keras.Model, name: str) -> type | None:
    """Return the class of a user's that has a method of its own in place of Keras's; None for Keras's.

    A function that a library puts into Keras's own class, as loggers do, is no override.
    """
    if name in vars(model):
        return type(model)  # set on the model itself
    owner = next((kind for kind in type(model).__mro__ if name in vars(kind)), object)
    return None if owner is object or _is_keras_module(owner.__module__) else owner


def is_replaced(model: keras.Model, name: str) -> bool:
    """Whether what Keras calls by a method's name is not what Keras made.

    Replaced it may be on the model, in its class, or in Keras's own class, by a library or a mock.
    """
    return overriding_class(model, name) is not None or patched_by(model, name) is not None


def patched_by(model: keras.Model, name: str) -> str | None:
    """Return the module of what a library has put in place of Keras's own method of all models, or None."""
    found = getattr(type(model), name)
    if found is _STOCK.get(name, found) and is_stock_method(found):
        return None
    variables = getattr(found, "__globals__", {})
    return str(variables.get("__name__") or getattr(type(found), "__module__", "another module"))


def codes_of(model: keras.Model, name: str) -> set[types.CodeType]:
    """Return the code of a method of a model, of those that it overrides, and of what they go around."""
    owners = (vars(model), *map(vars, type(model).__mro__))
    own = [function for owner in owners if (function := _function(owner.get(name))) is not None]
    inner: dict[int, types.FunctionType] = {}
    for function in own:
        _add_inner(function, inner)
    codes = (function.__code__ for function in inner.values())
    return {function.__code__ for function in own} | {code for code in codes if code.co_name == name}


def _add_inner(function: types.FunctionType, found: dict[int, types.FunctionType]) -> None:
    """Add the functions that a decorator or a library has put one around."""
    held = [getattr(function, "__wrapped__", None)]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            held.append(cell.cell_contents)
    for each in map(_function, held):
        if each is not None and id(each) not in found:
            found[id(each)] = each
            _add_inner(each, found)


def _function(method: Any) -> types.FunctionType | None:
    function = getattr(method, "__func__", method)
    return function if isinstance(function, types.FunctionType) else None


def method_cell(name: str) -> Any:
    """Return the cell in which Keras's method holds what it runs (`filter_traceback`, its variable `fn`)."""
    method = _STOCK[name]
    while method is not None:
        names = method.__code__.co_freevars
        if is_stock_method(method) and "fn" in names:
            return method.__closure__[names.index("fn")]
        method = getattr(method, "__wrapped__", None)  # as another library has wrapped it
    raise RuntimeError(f"keras.Model.{name} of Keras {keras.__version__} cannot be routed")


def is_stock_method(method: Any) -> bool:
    """Whether a bound method, function or class is Keras's own and not a user's override."""
    function = getattr(method, "__func__", method)
    # Not a function's `__module__`: `functools.wraps` copies it to what a user puts around one of Keras's,
    # and a mock to one whose globals have no name.
    spaces = getattr(function, "__globals__", None)
    module = getattr(function, "__module__", "") if spaces is None else spaces.get("__name__", "")
    return _is_keras_module(str(module))


def _is_keras_module(name: str) -> bool:
    """Whether a module is Keras's own, and not one of its tests, which are written as users write."""
    return name.split(".")[0] == "keras" and not name.endswith("_test")
