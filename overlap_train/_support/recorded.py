"""What is recorded of one call of `fit` or `evaluate`: hooks, callbacks and variables, in plain values."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

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
    """Return a model's and its optimizer's variables."""
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *(optimizer.variables if optimizer is not None else ())]


def states(callbacks: Iterable[Any]) -> list[list[Any]]:
    """Return the classes and the plain attributes of callbacks."""
    return [[type(callback).__name__, plain(vars(callback))] for callback in callbacks]


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
        array = array_of(value)
        fits = array.dtype.kind in "biuf" and array.size <= _MOST_VALUES
        return {ARRAY: array.tolist(), "dtype": array.dtype.name} if fits else None
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {str(k): plain(v, depth + 1) for k, v in value.items() if str(k)[:1] != "_"}
        if isinstance(value, (list, tuple, collections.deque)):
            return [plain(v, depth + 1) for v in value]
        if isinstance(value, (set, frozenset)):
            return sorted(str(plain(v, depth + 1)) for v in value)
    return None
