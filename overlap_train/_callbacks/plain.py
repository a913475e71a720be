"""Data, and objects of libraries that lead neither to the user's code nor to the training."""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import logging
import types
import weakref
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from overlap_train._inspection.code import Origin, is_simple, module_of, origin_of, variables_of

__all__ = ["is_plain", "is_plain_stream"]

_MOST_OBJECTS = 20_000
# Of longer containers the first and the last items are looked at: a list of losses grows with the training.
_MOST_ITEMS = 1_000
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
# Whose objects hold on to the whole notebook, and show what they are given.
_SHOWING = frozenset({"IPython", "_pytest", "ipykernel", "ipywidgets", "comm", "google"})


def is_plain(value: Any) -> bool:
    """Whether a value is data, or an object that can only keep and write what it is given."""
    if is_simple(value):
        return True
    waiting, seen = [value], dict[int, Any]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen or is_simple(each):
            continue
        seen[id(each)] = each  # held, so that its `id` stays its own
        if len(seen) > _MOST_OBJECTS or not _is_allowed(each, outermost=each is value):
            return False
        waiting.extend(_held_by(each))
    return True


def is_plain_stream(stream: Any) -> bool:
    """Whether what is written to a stream reaches no code of the user's."""
    while stream is not None:
        if origin_of(type(stream)) is Origin.USER:
            return False
        stream = getattr(stream, "buffer", None) or getattr(stream, "raw", None)
    return True


def _is_allowed(thing: Any, *, outermost: bool) -> bool:
    kind: Any = thing if isinstance(thing, type) else type(thing)
    if isinstance(thing, type):
        return _is_apart(kind)
    if isinstance(thing, (types.FunctionType, types.BuiltinFunctionType)):
        return not outermost and origin_of(thing) in (Origin.LIBRARY, Origin.STANDARD)
    if isinstance(thing, np.ndarray) and thing.dtype.hasobject:
        return False
    if isinstance(thing, (types.ModuleType, types.GeneratorType, weakref.ReferenceType, np.ufunc)):
        return False
    if outermost and callable(thing):
        return False
    return _is_apart(kind)


@functools.lru_cache(maxsize=1024)
def _is_apart(kind: Any) -> bool:
    """Whether neither a class nor one of its bases is the user's, Keras's or TensorFlow's."""
    return not {Origin.USER, Origin.TRAINING} & {origin_of(base) for base in inspect.getmro(kind)}


def _held_by(thing: Any) -> Iterable[Any]:
    kind = type(thing)
    if module_of(kind).split(".")[0] in _SHOWING or isinstance(thing, type):
        return ()
    if isinstance(thing, logging.Logger):  # the manager knows the loggers of everybody
        return (*thing.handlers, *thing.filters, thing.parent if thing.propagate else None)
    if isinstance(thing, types.FunctionType):
        return (thing.__closure__, thing.__defaults__, thing.__kwdefaults__)
    if kind in (dict, collections.OrderedDict):
        return [*_ends(thing.keys()), *_ends(thing.values())]
    if kind in _SEQUENCES:
        return _ends(thing)
    return [*gc.get_referents(thing), *variables_of(thing).values()]


def _ends(items: Any) -> list[Any]:
    ends = list(islice(items, _MOST_ITEMS))
    if len(items) > _MOST_ITEMS and hasattr(items, "__reversed__"):
        ends += islice(reversed(items), _MOST_ITEMS)
    return ends
