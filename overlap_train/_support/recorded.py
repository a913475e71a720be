"""What is recorded of one call of `fit` or `evaluate`: hooks, callbacks and variables, in plain values."""

from __future__ import annotations

import collections
import gc
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._support.differences import Call

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


def note(call: Call, model: keras.Model, hooks: Hooks, callbacks: Sequence[Any], history: Any) -> None:
    """Note what came of a call that has ended; `hooks` have heard nothing in one without callbacks."""
    call.result = plain(getattr(history, "history", history))
    call.hooks = hooks.calls or _ends_of(history)
    call.callbacks = [(type(callback).__name__, _attributes(callback, 0)) for callback in callbacks]
    call.metrics = ["loss", *_names_of_metrics(model)]
    if call.name == "fit":
        variables, moments = _variables(model)
        call.variables = [(_path(variable), _array(variable)) for variable in (*variables, *moments)]
        call.weights = len(model.trainable_variables)
        call.moments = len(moments)


def _ends_of(history: Any) -> list[tuple[str, int | None, Any]]:
    """Return the ends of the epochs of a training without callbacks, as `Hooks` notes them."""
    if not isinstance(history, keras.callbacks.History):
        return []
    epochs = getattr(history, "epoch", [])  # which one that has not been trained with lacks
    values = {name: each for name, each in history.history.items() if len(each) == len(epochs)}
    logs = ({name: each[number] for name, each in values.items()} for number in range(len(epochs)))
    return [("on_epoch_end", epoch, plain(each)) for epoch, each in zip(epochs, logs, strict=True)]


def _names_of_metrics(model: keras.Model) -> list[str]:
    try:
        return list(model.get_metrics_result())
    except Exception:  # of a metric that has seen no batch
        return [metric.name for metric in model.metrics]


def _variables(model: keras.Model) -> tuple[list[Any], list[Any]]:
    """Return the variables of a model, its metrics, and what its loss and steps name; and its optimizers'."""
    held = _leaves(vars(model).values())
    losses = [each for each in held if isinstance(each, keras.losses.Loss)]
    held += [part for loss in losses for part in _leaves(vars(loss).values())]
    steps = (vars(type(model)).get(name) for name in ("call", "compute_loss", "test_step", "train_step"))
    held += [value for function in [*steps, *held] for value in _leaves(_named_in(function))]
    optimizers = [part for part in [model.optimizer, *held] if isinstance(part, keras.optimizers.Optimizer)]
    moments = {id(variable): variable for each in optimizers for variable in each.variables}
    others = [
        *model.trainable_variables,
        *model.variables,
        *(variable for metric in model.metrics for variable in metric.variables),
        *(value for value in held if isinstance(value, (tf.Variable, keras.Variable))),
    ]
    found = {id(variable): variable for variable in others if id(variable) not in moments}
    return [*found.values()], [*moments.values()]


def _path(variable: Any) -> str:
    """Return the path of one of Keras's variables, and the name of TensorFlow's."""
    return str(getattr(variable, "path", variable.name))


def _leaves(values: Iterable[Any]) -> list[Any]:
    """Return values, and what lists and dicts among them hold."""
    leaves: list[Any] = []
    for value in list(values):
        try:
            leaves += keras.tree.flatten(value)
        except Exception:  # of keys that cannot be put in order
            leaves.append(value)
    return leaves


def _named_in(function: Any) -> list[Any]:
    """Return what a function finds in its closure and under its global names."""
    if not isinstance(function, types.FunctionType):
        return []
    in_closure = gc.get_referents(*function.__closure__ or ())  # none of a cell that is still empty
    return [*map(function.__globals__.get, function.__code__.co_names), *in_closure]


def _array(value: Any) -> Any:
    """Return a copy as an array of a type that NumPy stores; of fewer bits than it knows as float32."""
    array = np.array(np.asarray(value))  # TensorFlow's tensors warn where NumPy asks them for a copy
    return array if array.dtype.kind in "?biufcSU" else array.astype(np.float32)


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as plain ones and arrays; None for the rest, such as models and open files."""
    try:
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)  # of a class of its own, which only the script can import
        if isinstance(value, np.generic):
            return value.item() if value.dtype.kind in "biufU" else None
        if isinstance(value, np.ndarray) or keras.ops.is_tensor(value):
            return _shortened(_array(value))
        if depth >= _DEEPEST:
            return None
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


def _shortened(array: Any) -> Any:
    """Return an array of numbers, or of a large one some of them and what all add up to."""
    if array.dtype.kind not in "biuf":
        return None
    if array.size <= _MOST_VALUES:
        return array
    some = array.ravel()[:: array.size // _MOST_VALUES + 1].copy()
    total = float(np.sum(np.abs(array), dtype=float))
    return {"shape": str(array.shape), "sum": total, "some": some}


def _attributes(owner: Any, depth: int) -> Any:
    """Return the plain attributes of a user's object or a callback, without those that Keras hides there."""
    values, bases = dict(getattr(owner, "__dict__", {})), type(owner).__mro__
    methods = [each for base in bases if base.__module__.startswith("keras.") for each in vars(base).values()]
    codes = [method.__code__ for method in methods if isinstance(method, types.FunctionType)]
    hidden = {name for code in codes for name in code.co_names if name.startswith("_")}
    if isinstance(owner, keras.callbacks.History):
        hidden |= {"account", "accounts", "ended"}  # which a trainer adds
    return {name: plain(value, depth + 1) for name, value in values.items() if name not in hidden}


def _is_users(kind: type) -> bool:
    """Whether a class is of the script or a module beside it, and no library's."""
    name, libraries = kind.__module__, tuple(sysconfig.get_paths()[each] for each in ("stdlib", "purelib"))
    file = getattr(sys.modules.get(name), "__file__", None)
    ours = name.split(".")[0] == "overlap_train"
    return name == "__main__" or bool(file and not ours and not file.startswith(libraries))
