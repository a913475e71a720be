"""Whether an object of a library leads to the user's code or to the training: it may have been handed them.

`numpy.vectorize(function)` calls the user's function, a logger its handlers, a library's helper may hold the
model. All that an object holds is looked through, as Python's garbage collector does.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import types
import weakref
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._callbacks.given import TRAINING_OBJECTS
from overlap_train._inspection.origins import Origin, is_simple, origin_of

__all__ = ["has_own_functions", "is_apart", "is_still_apart", "leads_on"]

_MOST_OBJECTS = 20_000
# What holds more is not looked through again, at each epoch.
_MOST_AGAIN = 2_000
_VALUES = (tf.Tensor, keras.KerasTensor, tf.DType, types.CodeType, types.ModuleType)
_MODELS: tuple[Any, ...] = (keras.layers.Layer, keras.optimizers.Optimizer)
_known: dict[int, tuple[weakref.ref[Any], bool, int]] = {}


def is_apart(thing: Any) -> bool:
    """Whether an object is a library's, and leads neither to the user's code nor to the training."""
    return origin_of(type(thing)) is Origin.LIBRARY and not leads_on(thing)


def is_still_apart(thing: Any) -> bool:
    """Whether an object that has led nowhere does so now, unless it holds too much to look through again."""
    known = _known.get(id(thing))
    if known is None or known[2] <= _MOST_AGAIN:
        _known.pop(id(thing), None)
    return not leads_on(thing)


def has_own_functions(callback: keras.callbacks.Callback) -> bool:
    """Whether the user has given a callback itself, and not its class, functions, as by `callback.f = g`."""
    return any(
        callable(value) and not isinstance(value, (type, *_MODELS)) and leads_on(value)
        for value in vars(callback).values()
    )


def leads_on(thing: Any) -> bool:
    """Whether something can be reached from an object that is the user's or a part of the training.

    It is looked at once. An object that cannot be seen through within reason counts as one that leads there.
    """
    known = _known.get(id(thing))
    if known is not None and known[0]() is thing:
        return known[1]
    found, count = _finds(thing)
    key = id(thing)
    if not isinstance(thing, logging.Logger):  # which is given handlers at any time
        with contextlib.suppress(TypeError):  # of some things there are no weak references
            _known[key] = weakref.ref(thing, lambda _: _known.pop(key, None)), found, count
    return found


def _finds(thing: Any) -> tuple[bool, int]:
    """Returns whether something is found that is the user's or the training's, and how much is looked at."""
    waiting, seen = [thing], {}
    while waiting:
        each = waiting.pop()
        if id(each) in seen or is_simple(each) or isinstance(each, _VALUES):
            continue
        seen[id(each)] = each  # held, so that its `id` stays its own
        if len(seen) > _MOST_OBJECTS or _is_found(each):
            return True, len(seen)
        waiting.extend(_held_by(each))
    return False, len(seen)


def _is_found(thing: Any) -> bool:
    if isinstance(thing, (*TRAINING_OBJECTS, keras.callbacks.Callback)):
        return True
    kind = thing if isinstance(thing, (type, types.FunctionType)) else type(thing)
    return origin_of(kind) is Origin.USER


def _held_by(thing: Any) -> Iterable[Any]:
    if isinstance(thing, type):
        return ()
    if isinstance(thing, types.FunctionType):
        # Its globals are its module's, of which is taken for granted what is of the library.
        return (thing.__closure__, thing.__defaults__, thing.__kwdefaults__, vars(thing))
    if isinstance(thing, logging.Logger):  # the manager knows the loggers of everybody
        return (thing.handlers, thing.filters, thing.parent if thing.propagate else None)
    if isinstance(thing, weakref.ReferenceType):
        return (thing(),)
    if isinstance(thing, types.BuiltinFunctionType):
        return (thing.__self__,)
    if isinstance(thing, np.ndarray):
        return () if not thing.dtype.hasobject else thing.ravel()[: _MOST_OBJECTS + 1].tolist()
    return (each for each in gc.get_referents(thing) if each is not type(thing))
