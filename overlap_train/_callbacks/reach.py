"""What the user's code can get hold of: by attributes, closures and names, without running any of it."""

from __future__ import annotations

import collections
import gc
import types
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._callbacks.facts import variables_of
from overlap_train._callbacks.origins import Origin, is_simple, origin_of

__all__ = ["reached"]

# Whoever holds more is taken to reach no further.
_MOST_OBJECTS, _MOST_ITEMS = 20_000, 1_000
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
_ENDS = (tf.Tensor, tf.Variable, keras.KerasTensor, keras.Variable, np.generic, types.BuiltinFunctionType)
_TRAINED = (keras.layers.Layer, keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)


def reached(roots: Iterable[Any], *kinds: type) -> list[Any]:
    """Returns the objects of some kinds that code can get hold of which begins with `roots`.

    Looked through are attributes, containers, what functions of the user's close over and name, and the
    classes and modules of the user's that they name. What these hold in turn is, too, but for layers and the
    like, of which only the attributes count.
    """
    left, found = list(roots), []
    seen: dict[int, Any] = {}
    while left and len(seen) < _MOST_OBJECTS:
        thing = left.pop()
        if id(thing) in seen or is_simple(thing) or isinstance(thing, _ENDS):
            continue
        seen[id(thing)] = thing  # held, so that its `id` stays its own
        if isinstance(thing, kinds):
            found.append(thing)
        left += _held_by(thing, kinds)
    return found


def _held_by(thing: Any, kinds: tuple[type, ...]) -> Iterable[Any]:
    if isinstance(thing, dict):
        return islice(thing.values(), _MOST_ITEMS)
    if isinstance(thing, _CONTAINERS):
        return islice(thing, _MOST_ITEMS)
    if isinstance(thing, types.FunctionType):
        return _of_function(thing)
    if isinstance(thing, types.CellType):
        return _content(thing)
    if isinstance(thing, type):
        return [*vars(thing).values(), *thing.__bases__] if origin_of(thing) is Origin.USER else ()
    if isinstance(thing, (types.ModuleType, np.ndarray, tf.data.Dataset)):
        return ()
    written = [type(thing)] if origin_of(type(thing)) is Origin.USER else []
    if isinstance(thing, _TRAINED):
        return [*written, *(each for each in variables_of(thing).values() if isinstance(each, kinds))]
    return [*written, *(each for each in gc.get_referents(thing) if not isinstance(each, type))]


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    """Yields what a function closes over, has as defaults, and names."""
    yield from (function.__closure__ or (), function.__defaults__ or (), function.__kwdefaults__ or {})
    yield vars(function)
    if origin_of(function) is not Origin.USER:
        return
    names = _names(function.__code__)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and origin_of(value) is Origin.USER:
            yield from (vars(value)[each] for each in names if each in vars(value))
        else:
            yield value


def _names(code: types.CodeType) -> set[str]:
    """Returns the names in a function's code and in that of the functions inside it."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not filled yet
        return ()
