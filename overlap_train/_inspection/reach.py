"""The objects that a user's code can reach by attributes, closures and names, without running any of it."""

from __future__ import annotations

import collections
import functools
import gc
import logging
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._inspection import code
from overlap_train._inspection.attributes import variables_of
from overlap_train._inspection.code import (
    Origin,
    Unclear,
    attributes_set_by,
    content_of,
    imported,
    is_simple,
    origin_of,
)

# Of code that reaches more, it is unclear what else it reaches.
_MOST_OBJECTS = 1_000_000
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
# Data such as annotations, which may have many parts: C code goes through it.
_PLAIN = frozenset({dict, list, tuple, set, frozenset, collections.deque})
_PARTS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_ENDS = (
    *(tf.Tensor, tf.Variable, keras.KerasTensor, keras.Variable, np.generic),
    *(types.BuiltinFunctionType, logging.Logger, logging.Handler),
)
_PARTS_OF_MODELS = (keras.layers.Layer, keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)


def reached(roots: Iterable[Any], *kinds: type) -> list[Any]:
    """Return the objects of some kinds that code can reach from `roots`, the nearest first.

    The search goes through attributes, containers, closures, and the names in functions, classes and modules
    of users. Of layers, optimizers, losses and metrics it takes only attributes that Keras has not set.
    """
    return [thing for thing in _walk(roots, kinds) if isinstance(thing, kinds)]


def reaches(roots: Iterable[Any], targets: Iterable[Any]) -> Any | None:
    """Return the first of some objects that code can reach from `roots`, or None."""
    by_id = {id(target): target for target in targets}
    kinds = tuple({type(target) for target in by_id.values()})
    return next((thing for thing in _walk(roots, kinds) if id(thing) in by_id), None)


def _walk(roots: Iterable[Any], kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yield each object once, the nearest first."""
    level = list(roots)
    visited: dict[int, Any] = {}
    simple: dict[type, bool] = {}
    ends: dict[type, bool] = {}
    while level:
        plain: list[Any] = []
        following: list[Any] = []
        for thing in level:
            kind = type(thing)
            if kind in weakref.ProxyTypes:  # which behaves like its referent
                following += _referent(thing)
                continue
            if kind not in simple:
                simple[kind] = is_simple(thing)
                ends.setdefault(kind, isinstance(thing, _ENDS))
            if simple[kind] or id(thing) in visited:
                continue
            visited[id(thing)] = thing  # a reference, so that no other object gets its `id`
            yield thing
            if kind in _PLAIN:
                plain.append(thing)
            elif kind is np.ndarray:
                following += thing.flat if thing.dtype.hasobject else ()
            elif not ends[kind]:
                following += _references(thing, kinds)
        if len(visited) > _MOST_OBJECTS:
            raise Unclear
        following += gc.get_referents(*plain)
        level = [thing for thing in following if type(thing) not in _PARTS]


def _references(thing: Any, kinds: tuple[type, ...]) -> Iterable[Any]:
    if isinstance(thing, dict):
        return [*thing.values(), *thing.keys(), *variables_of(thing).values()]
    if isinstance(thing, _CONTAINERS):
        return [*thing, *variables_of(thing).values()]
    if isinstance(thing, types.FunctionType):
        return _of_function(thing)
    if isinstance(thing, types.CellType):
        return content_of(thing)
    if isinstance(thing, weakref.ref):
        return (thing(),)
    if isinstance(thing, type):
        return [*vars(thing).values(), *thing.__bases__] if origin_of(thing) is Origin.USER else ()
    if isinstance(thing, np.ndarray):  # of a subclass, which may have attributes
        return [*(thing.flat if thing.dtype.hasobject else ()), *variables_of(thing).values()]
    if isinstance(thing, (types.ModuleType, tf.data.Dataset)):
        return ()
    user_class = [type(thing)] if origin_of(type(thing)) is Origin.USER else []
    if isinstance(thing, _PARTS_OF_MODELS):
        return [*user_class, *_of_model_part(thing, kinds)]
    return [*user_class, *(value for value in gc.get_referents(thing) if not issubclass(type(value), type))]


def _of_model_part(thing: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yield the attributes of a layer or the like that are of the kinds, or set by the user."""
    kind: Any = type(thing)
    stock = _set_by_keras(kind)
    for name, value in variables_of(thing).items():
        if isinstance(value, kinds) or (name not in stock and _may_lead_on(value)):
            yield value


def _may_lead_on(value: Any) -> bool:
    """Whether the value of an attribute that Keras has not set may refer to a user's objects."""
    containers = (*_CONTAINERS, dict, np.ndarray, types.FunctionType, types.MethodType)
    return isinstance(value, containers) or origin_of(type(value)) not in (Origin.TRAINING, Origin.STANDARD)


@functools.lru_cache(maxsize=256)
def _set_by_keras(kind: Any) -> frozenset[str]:
    """Return the names of the attributes that a class of Keras's, or the bases of another, set."""
    return attributes_set_by(base for base in kind.__mro__ if origin_of(base) is not Origin.USER)


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    """Yield the closure, the defaults and the attributes of a function, and the values of its names."""
    yield from (function.__closure__ or (), function.__defaults__ or (), function.__kwdefaults__ or {})
    yield vars(function)
    if origin_of(function) is Origin.USER:
        yield from (value for value in _named_in(function) if not isinstance(value, types.ModuleType))


def _named_in(function: types.FunctionType) -> Iterator[Any]:
    """Yield the values of the global names in a function's code, also in users' modules."""
    names, spaces, visited = code.names_in(function.__code__), [function.__globals__], set()
    for name in names:
        modules = imported(name, function.__globals__.get("__package__"))
        spaces += [vars(module) for module in modules if origin_of(module) is Origin.USER]
    while spaces:
        space = spaces.pop()
        if id(space) in visited:
            continue
        visited.add(id(space))
        for name in names & space.keys():
            value = space.get(name)
            yield value
            if isinstance(value, types.ModuleType) and origin_of(value) is Origin.USER:
                spaces.append(vars(value))


def _referent(proxy: Any) -> tuple[Any, ...]:
    """Return the object of a weak proxy, if it still lives."""
    try:
        return (proxy.__init__.__self__,)
    except (AttributeError, ReferenceError):
        return ()
