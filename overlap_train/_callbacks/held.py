"""What an object is to a callback that holds it, or finds it by a name."""

from __future__ import annotations

import collections
import threading
from itertools import islice
from typing import Any

import numpy as np

from overlap_train._callbacks.given import CALLABLE, TRAINING_OBJECTS, Given, Known, Value
from overlap_train._callbacks.leads import leads_on
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.origins import SIMPLE, Origin, is_simple, module_of, origin_of

__all__ = ["met"]

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_FACTORIES = (bool, int, float, complex, str, list, tuple, dict, set, collections.deque, collections.Counter)
_SIMPLE = frozenset(SIMPLE)
# Of longer containers the first and the last items are looked at: a list of losses grows with the training.
_MOST_ITEMS = 1_000
# Objects that only keep what they are given, or write it.
_KEEPERS = frozenset({"_csv", "_io", "csv", "datetime", "decimal", "io", "logging", "pathlib"})
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def met(value: Any, *, fixed: bool = True) -> Value:
    """Returns what an object is to a callback that holds it.

    Args:
        value: the object.
        fixed: whether it will be the same when the code runs.

    Raises:
        Unclear: a container holds what may do anything.
    """
    if is_simple(value) or isinstance(value, CALLABLE):
        return Known(value, fixed)
    if isinstance(value, TRAINING_OBJECTS):
        return Given.PART
    if _is_container(value):
        return _container(value, above=())
    if isinstance(value, _LOCKS) or _is_plain_array(value):
        return Given.DATA
    keeps = module_of(type(value)).split(".")[0] in _KEEPERS and origin_of(type(value)) is Origin.STANDARD
    return Given.DATA if keeps and not leads_on(value) else Known(value, fixed)


def _is_plain_array(value: Any) -> bool:
    """Whether something is an array of numbers or text, and not of a class whose methods NumPy calls."""
    return (
        isinstance(value, np.ndarray) and not value.dtype.hasobject and origin_of(type(value)) != Origin.USER
    )


def _is_container(value: Any) -> bool:
    return isinstance(value, _CONTAINERS) and origin_of(type(value)) is Origin.STANDARD


def _container(value: Any, above: tuple[int, ...]) -> Given:
    if len(above) > 3 or id(value) in above:
        raise Unclear
    factory = value.default_factory if isinstance(value, collections.defaultdict) else None
    if factory is not None and not any(factory is kind for kind in _FACTORIES):
        raise Unclear
    found, items = Given.DATA, _items(value)
    if _SIMPLE.issuperset(map(type, items)):
        return found
    for item in items:
        if type(item) in _SIMPLE:
            continue
        inner = _container(item, (*above, id(value))) if _is_container(item) else met(item)
        if inner is Given.PART:
            found = Given.PART
        elif isinstance(inner, Known) and not is_simple(inner.value):
            raise Unclear
    return found


def _items(value: Any) -> list[Any]:
    """Returns what is in a container, of a long one from both its ends."""
    parts = (value.keys(), value.values()) if isinstance(value, dict) else (value,)
    items: list[Any] = []
    for part in parts:
        items += islice(part, _MOST_ITEMS)
        if len(part) > _MOST_ITEMS and hasattr(part, "__reversed__"):
            items += islice(reversed(part), _MOST_ITEMS)
    return items
