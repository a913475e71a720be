"""Values that callbacks keep, copied so that what happens later does not reach the copy.

Copied are None, numbers, text, bytes, lists, tuples, dicts, sets and deques of such, NumPy scalars and
arrays, eager tensors, and variables by value. Anything else is a resource (a model, a file, a writer, a
function) that stays with the live callback. Types are compared exactly: a subclass may hold more than a copy
of its items would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["Resource", "VariableValue", "copied", "put_back", "require_variables"]

_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes})
_SEQUENCES = (list, tuple, set, frozenset)
_IN_PLACE = (list, dict, set, deque)
# Containers in each other: to copy, pack and put back more could exhaust the stack. `packing` reads as many.
_DEEPEST = 60


class Resource(Exception):
    """A value, or something in it, cannot be copied."""


@dataclass(frozen=True)
class VariableValue:
    """The value of a Keras or TensorFlow variable; it shares the variable's buffer."""

    tensor: tf.Tensor


def copied(
    value: Any, *, copy_arrays: bool = True, foreign: Collection[int] = (), _above: tuple[int, ...] = ()
) -> Any:
    """Returns a copy of a value; immutable parts are shared.

    Args:
        value: what a callback keeps.
        copy_arrays: whether it may write into its arrays.
        foreign: the `id` of each variable that somebody else restores.

    Raises:
        Resource: a part of it cannot be copied.
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind in _SEQUENCES and _IMMUTABLE.issuperset(map(type, value)):
        return kind(value)  # a history is long, and has nothing to look into
    if isinstance(value, (np.ndarray, np.generic)):
        return _copied_array(value, copy_arrays)
    if _is_variable(value):
        if id(value) in foreign:
            raise Resource("a variable of the model")
        return VariableValue(_tf_variable(value).read_value())
    if isinstance(value, VariableValue):
        return value
    if tf.is_tensor(value) and hasattr(value, "numpy") and hasattr(value, "dtype"):
        return _copied_tensor(value)
    if id(value) in _above:
        raise Resource("a container that holds itself")
    if len(_above) >= _DEEPEST:
        raise Resource(f"a container in more than {_DEEPEST} others")
    above = (*_above, id(value))

    def part(item: Any) -> Any:
        return copied(item, copy_arrays=copy_arrays, foreign=foreign, _above=above)

    if kind in _SEQUENCES:
        return kind(part(item) for item in value)
    if kind is deque:
        return deque((part(item) for item in value), value.maxlen)
    if kind is dict:
        return {part(key): part(item) for key, item in value.items()}
    raise Resource(kind.__name__)


def put_back(live: Any, value: Any, *, in_place: bool, copy_arrays: bool = True) -> Any:
    """Returns what takes the place of a live value.

    Args:
        live: what is there now; variables in it are assigned.
        value: what `copied` returned; nothing of it that can change is handed out.
        in_place: whether to change a live list, dict, set or deque itself, so that who else holds it sees it.
        copy_arrays: whether the callback may write into its arrays.

    Raises:
        ValueError: a variable is to be restored where there is none, or one of another shape or dtype.
    """
    new = _parts_put_back(live, value, copy_arrays)
    if not in_place or type(live) is not type(value) or not isinstance(live, _IN_PLACE):
        return new
    if isinstance(live, deque) and live.maxlen != new.maxlen:
        return new
    live.clear()
    if isinstance(live, (dict, set)):
        live.update(new)
    else:
        live.extend(new)
    return live


def require_variables(live: Any, value: Any) -> None:
    """Makes sure that `put_back` finds the variables that it assigns, and changes nothing.

    Raises:
        ValueError: a variable is to be restored where there is none, or one of another shape or dtype.
    """
    if isinstance(value, VariableValue):
        _require_variable(live, value)
    elif isinstance(value, dict):
        known = live if isinstance(live, dict) else {}
        for key, item in value.items():
            require_variables(known.get(key), item)
    elif isinstance(value, (list, tuple, deque)) and not _IMMUTABLE.issuperset(map(type, value)):
        old = list(live) if isinstance(live, (list, tuple, deque)) else []
        for part, item in zip_longest(old[: len(value)], value):
            require_variables(part, item)


def _parts_put_back(live: Any, value: Any, copy_arrays: bool) -> Any:
    if isinstance(value, VariableValue):
        return _assigned(live, value)
    if isinstance(value, dict):
        known = live if isinstance(live, dict) else {}
        return {key: _parts_put_back(known.get(key), item, copy_arrays) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        old = list(live) if isinstance(live, (list, tuple, deque)) else []
        parts = [_parts_put_back(o, item, copy_arrays) for o, item in zip_longest(old[: len(value)], value)]
        return deque(parts, value.maxlen) if isinstance(value, deque) else type(value)(parts)
    return copied(value, copy_arrays=copy_arrays)


def _copied_array(value: Any, copy_arrays: bool) -> Any:
    if isinstance(value, (np.str_, np.bytes_)):
        return value  # whose item has no size where the text is empty
    if value.dtype.kind in "OT" or value.dtype.fields is not None or value.dtype.itemsize == 0:
        raise Resource(f"array of dtype {value.dtype}")
    if isinstance(value, np.generic):
        return value
    if type(value) is not np.ndarray:
        raise Resource(type(value).__name__)
    return value.copy() if copy_arrays else value


def _copied_tensor(value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or not value.dtype.is_numpy_compatible or value.dtype == tf.string:
        raise Resource(f"tensor of {value.dtype}")
    return value


def _is_variable(value: Any) -> bool:
    return isinstance(value, (keras.Variable, tf.Variable))


def _tf_variable(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _assigned(live: Any, value: VariableValue) -> Any:
    _require_variable(live, value)
    _tf_variable(live).assign(value.tensor)
    return live


def _require_variable(live: Any, value: VariableValue) -> None:
    if not _is_variable(live):
        raise ValueError(f"it was a variable, and now it is of type {type(live).__name__}")
    target = _tf_variable(live)
    if target.dtype != value.tensor.dtype or not target.shape.is_compatible_with(value.tensor.shape):
        raise ValueError(
            f"it was a variable of {value.tensor.shape} {value.tensor.dtype.name}, and now it is one of "
            f"{target.shape} {target.dtype.name}"
        )
