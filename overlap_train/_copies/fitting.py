"""Which live object can be changed to what a copy says, and which copies say the same."""

from __future__ import annotations

from collections import deque
from typing import Any

import keras
import numpy as np

from overlap_train._copies import objects
from overlap_train._copies.generators import GeneratorValue, takes_state
from overlap_train._copies.objects import ObjectValue
from overlap_train._copies.values import VariableValue, is_variable, tf_variable

__all__ = ["are_equal", "has_to_be_there", "takes"]

_CONTAINERS = (list, dict, set, deque)
_LISTS = (list, tuple, deque)


def takes(live: Any, value: Any) -> bool:
    """Whether a live object can be changed to what a value says."""
    if isinstance(value, VariableValue):
        return is_variable(live) and _fits(live, value)
    if isinstance(value, GeneratorValue):
        return takes_state(live, value)
    if isinstance(value, ObjectValue):
        if objects.class_name(type(live)) != value.kind:
            return False
        variables = objects.state_variables(live)
        if variables is not None:
            return _all_fit(variables, value.items)
        # One that nothing changes may be a constant of the user's; where it was, another stands by now.
        frozen = getattr(getattr(type(live), "__dataclass_params__", None), "frozen", False)
        apart = objects.comes_apart(type(live)) or isinstance(live, keras.callbacks.Callback)
        return apart and objects.changes(live) and not frozen
    alike = type(live) is type(value) and type(value) in _CONTAINERS
    return alike and (not isinstance(value, deque) or live.maxlen == value.maxlen)


def _all_fit(variables: list[Any], items: Any) -> bool:
    kept = items if isinstance(items, list) else []
    return len(kept) == len(variables) and all(
        item is None or (isinstance(item, VariableValue) and _fits(variable, item))
        for variable, item in zip(variables, kept, strict=True)
    )


def _fits(live: Any, value: VariableValue) -> bool:
    target = tf_variable(live)
    return bool(target.dtype == value.tensor.dtype and target.shape.is_compatible_with(value.tensor.shape))


def has_to_be_there(value: Any) -> bool:
    return isinstance(value, VariableValue) or (isinstance(value, ObjectValue) and value.partial)


def are_equal(first: Any, second: Any) -> bool:
    """Whether two values say the same, so that they may be copies of one object."""
    if type(first) is not type(second):
        return False
    if isinstance(first, VariableValue):
        return are_equal(first.tensor.numpy(), second.tensor.numpy())
    if isinstance(first, np.ndarray):
        alike = (first.shape, first.dtype) == (second.shape, second.dtype)
        return alike and first.tobytes() == second.tobytes()
    if isinstance(first, ObjectValue):
        parts = [[each.kind, each.items, dict(each.attributes)] for each in (first, second)]
        return are_equal(*parts)
    if isinstance(first, dict):
        return are_equal([*first.items()], [*second.items()])
    if isinstance(first, _LISTS):
        return len(first) == len(second) and all(map(are_equal, first, second))
    return repr(first) == repr(second)
