"""What the attributes that Keras's callbacks remember may hold, to tell a state from one made by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

__all__ = ["unfit"]

# Keras makes tensors of 32 bits of Python's numbers, to compare them with a metric; larger ones make none.
_LARGEST_INTEGER = 2**31 - 1
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def unfit(name: str, value: Any, model: keras.Model | None) -> str | None:
    """Returns in words why a value cannot be that of an attribute, or None.

    Args:
        name: of an attribute that a callback of Keras remembers.
        value: from a checkpoint.
        model: that the callback belongs to; its weights have the shapes of those that are remembered.
    """
    if name == "best_weights":
        return None if value is None or _are_weights(value, model) else "does not hold the model's weights"
    expected, fits = _EXPECTED.get(name, ("a whole number", _is_count))
    return None if fits(value) else f"is of type {type(value).__name__}, where {expected} belongs"


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_batch(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= _LARGEST_INTEGER
    if isinstance(value, float):
        return not math.isfinite(value) or abs(value) <= _LARGEST_FLOAT
    if value is None:
        return True
    return getattr(value, "shape", None) == () and np.asarray(value).dtype.kind in "biufV"


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _is_history(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(k, str) and isinstance(v, list) for k, v in value.items()
    )


def _are_weights(value: Any, model: keras.Model | None) -> bool:
    if not isinstance(value, list) or not all(isinstance(array, np.ndarray) for array in value):
        return False
    if model is None:
        return True
    return [(a.shape, a.dtype.name) for a in value] == [(tuple(w.shape), w.dtype) for w in model.weights]


# The attributes that are not listed are counters.
_EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "_ema_weights_in_model": ("True or False", _is_flag),
    "_last_batch_seen": ("a whole number or None", _is_batch),
    "_should_write_train_graph": ("True or False", _is_flag),
    "append": ("True or False", _is_flag),
    "best": ("a number", _is_number),
    "epoch": ("a list of epochs", lambda value: isinstance(value, list) and all(map(_is_count, value))),
    "history": ("a dict of lists", _is_history),
    "keys": ("a list of names", _are_names),
}
