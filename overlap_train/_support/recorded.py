"""What is recorded of one call of `fit` or `evaluate`: hooks, callbacks and variables, in plain values."""

from __future__ import annotations

import collections
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._support.differences import ARRAY

_DEEPEST, _MOST_VALUES = 6, 100_000  # of what is looked at in a callback's attributes


class Hooks(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes which hooks of trainings, epochs and validations are called, in order, with which logs.

    Those of beginnings are left out: some fits would have to wait for them.
    """

    overlap_safe = True  # it only notes

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int | None, Any]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.calls.append(("on_train_begin", None, plain(logs)))

    def on_train_end(self, logs: Any = None) -> None:
        self.calls.append(("on_train_end", None, plain(logs)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("on_epoch_end", epoch, plain(logs)))

    def on_test_end(self, logs: Any = None) -> None:
        self.calls.append(("on_test_end", None, plain(logs)))


def variables_of(model: keras.Model) -> list[Any]:
    """Return the variables of a model, of its optimizers and metrics, and of what its loss and steps name."""
    held = _leaves(vars(model))
    held += [part for loss in held if isinstance(loss, keras.losses.Loss) for part in _leaves(vars(loss))]
    steps = (vars(type(model)).get(name) for name in ("call", "compute_loss", "test_step", "train_step"))
    held += [value for function in [*steps, *held] for value in _leaves(_named_in(function))]
    optimizers = [part for part in held if isinstance(part, keras.optimizers.Optimizer)]
    found = [
        *model.variables,
        *(variable for each in [model.optimizer, *optimizers] if each for variable in each.variables),
        *(variable for metric in model.metrics for variable in metric.variables),
        *(value for value in held if isinstance(value, (tf.Variable, keras.Variable))),
    ]
    return list({id(variable): variable for variable in found}.values())


def path_of(variable: Any) -> str:
    """Return the path of one of Keras's variables, and the name of TensorFlow's."""
    return str(getattr(variable, "path", variable.name))


def _leaves(values: Mapping[str, Any]) -> list[Any]:
    """Return values, and what lists and dicts among them hold."""
    leaves: list[Any] = []
    for value in list(values.values()):
        try:
            leaves += keras.tree.flatten(value)
        except Exception:  # of keys that cannot be put in order
            leaves.append(value)
    return leaves


def _named_in(function: Any) -> dict[str, Any]:
    """Return what a function finds in its closure and under its global names."""
    if not isinstance(function, types.FunctionType):
        return {}
    code, cells = function.__code__, function.__closure__ or ()
    names = {name: function.__globals__.get(name) for name in code.co_names}
    full = (
        (name, cell) for name, cell in zip(code.co_freevars, cells, strict=True) if cell != types.CellType()
    )
    return names | {name: cell.cell_contents for name, cell in full}


def states(callbacks: Iterable[Any]) -> list[list[Any]]:
    """Return the classes and the plain attributes of callbacks."""
    return [[type(callback).__name__, _attributes(callback, 0)] for callback in callbacks]


def array_of(value: Any) -> Any:
    """Return an array of a type that NumPy stores; of fewer bits than it knows as float32."""
    array = np.asarray(value)
    return array if array.dtype.kind in "?biufcSU" else array.astype(np.float32)


def plain(value: Any, depth: int = 0) -> Any:
    """Return what of a value JSON can hold; None for the rest, such as models and open files."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "biufU" else None
    if isinstance(value, np.ndarray) or keras.ops.is_tensor(value):
        return _array(array_of(value))
    if depth >= _DEEPEST:
        return None
    try:
        if isinstance(value, Mapping):
            return {str(k): plain(v, depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple, collections.deque)):
            return [plain(v, depth + 1) for v in value]
        if isinstance(value, (set, frozenset)):
            return sorted(str(plain(v, depth + 1)) for v in value)
        if isinstance(value, keras.callbacks.Callback) or _is_users(type(value)):
            return _attributes(value, depth + 1)
    except Exception:  # such as of a store that is closed
        return None
    return None


def _array(array: Any) -> Any:
    if array.dtype.kind not in "biuf":
        return None
    if array.size > _MOST_VALUES:  # then some of them, and what all add up to
        some = array.ravel()[:: array.size // _MOST_VALUES + 1]
        return {
            "shape": str(array.shape),
            "sum": float(np.sum(np.abs(array), dtype=float)),
            "some": _array(some),
        }
    return {ARRAY: array.tolist(), "dtype": array.dtype.name}


def _attributes(owner: Any, depth: int) -> Any:
    """Return the plain attributes of a user's object or a callback, without those that Keras hides there."""
    values, bases = dict(getattr(owner, "__dict__", {})), type(owner).__mro__
    methods = [each for base in bases if base.__module__.startswith("keras.") for each in vars(base).values()]
    codes = [method.__code__ for method in methods if isinstance(method, types.FunctionType)]
    hidden = {name for code in codes for name in code.co_names if name.startswith("_")}
    return {name: plain(value, depth + 1) for name, value in values.items() if name not in hidden}


def _is_users(kind: type) -> bool:
    """Whether a class is of the script or a module beside it, and no library's."""
    name, libraries = kind.__module__, tuple(sysconfig.get_paths()[each] for each in ("stdlib", "purelib"))
    file = getattr(sys.modules.get(name), "__file__", None)
    ours = name.split(".")[0] == "overlap_train"
    return name == "__main__" or bool(file and not ours and not file.startswith(libraries))
