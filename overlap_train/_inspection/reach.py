"""What the user's code can get hold of: by attributes, closures and names, without running any of it."""

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
from overlap_train._inspection.code import (
    Origin,
    Unclear,
    content_of,
    function_of,
    imported,
    is_simple,
    origin_of,
    stored_in,
    variables_of,
)

__all__ = ["names_in", "reached", "reaches"]

# Who gets hold of more cannot be told to reach nothing else.
_MOST_OBJECTS = 1_000_000
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
# Data such as annotations: looked through by C code, since it may have many parts.
_PLAIN = frozenset({dict, list, tuple, set, frozenset, collections.deque})
_PARTS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_ENDS = (
    *(tf.Tensor, tf.Variable, keras.KerasTensor, keras.Variable, np.generic),
    *(types.BuiltinFunctionType, logging.Logger, logging.Handler),
)
_TRAINED = (keras.layers.Layer, keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)


def reached(roots: Iterable[Any], *kinds: type) -> list[Any]:
    """Returns the objects of some kinds that code can get hold of which begins with `roots`.

    Looked through are attributes, containers, what functions of the user's close over and name, and the
    classes and modules of the user's that they name. What these hold in turn is, too, but for layers and the
    like, of which only what Keras has not made counts. What is near to the roots comes first.
    """
    return [thing for thing in _walk(roots, kinds) if isinstance(thing, kinds)]


def reaches(roots: Iterable[Any], targets: Iterable[Any]) -> Any | None:
    """Returns the first of some objects that code can get hold of which begins with `roots`, or None."""
    wanted = {id(target): target for target in targets}
    kinds = tuple({type(target) for target in wanted.values()})
    return next((thing for thing in _walk(roots, kinds) if id(thing) in wanted), None)


def names_in(functions: Iterable[types.FunctionType]) -> frozenset[str]:
    """Returns the names of variables and attributes in the code of functions of the user's."""
    own = (each.__code__ for each in functions if origin_of(each) is Origin.USER)
    return frozenset[str]().union(*map(code.names_in, own))


def _walk(roots: Iterable[Any], kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yields each object once, the nearest first."""
    level = list(roots)
    seen: dict[int, Any] = {}
    simple: dict[type, bool] = {}
    ends: dict[type, bool] = {}
    while level:
        plain: list[Any] = []
        following: list[Any] = []
        for thing in level:
            kind = type(thing)
            if kind in weakref.ProxyTypes:  # which passes for what it stands for, as long as that lives
                following += _behind(thing)
                continue
            if kind not in simple:
                simple[kind] = is_simple(thing)
                ends.setdefault(kind, isinstance(thing, _ENDS))
            if simple[kind] or id(thing) in seen:
                continue
            seen[id(thing)] = thing  # held, so that its `id` stays its own
            yield thing
            if kind in _PLAIN:
                plain.append(thing)
            elif kind is np.ndarray:
                following += thing.flat if thing.dtype.hasobject else ()
            elif not ends[kind]:
                following += _held_by(thing, kinds)
        if len(seen) > _MOST_OBJECTS:
            raise Unclear
        following += gc.get_referents(*plain)
        level = [thing for thing in following if type(thing) not in _PARTS]


def _held_by(thing: Any, kinds: tuple[type, ...]) -> Iterable[Any]:
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
    if isinstance(thing, np.ndarray):  # of a class that may have attributes of its own
        return [*(thing.flat if thing.dtype.hasobject else ()), *variables_of(thing).values()]
    if isinstance(thing, (types.ModuleType, tf.data.Dataset)):
        return ()
    written = [type(thing)] if origin_of(type(thing)) is Origin.USER else []
    if isinstance(thing, _TRAINED):
        return [*written, *_of_trained(thing, kinds)]
    return [*written, *(each for each in gc.get_referents(thing) if not issubclass(type(each), type))]


def _of_trained(thing: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yields the attributes of a layer or the like that count: of the kinds, or set by the user."""
    kind: Any = type(thing)
    own = _set_by_keras(kind)
    for name, value in variables_of(thing).items():
        if isinstance(value, kinds) or (name not in own and _is_users(value)):
            yield value


def _is_users(value: Any) -> bool:
    """Whether the value of an attribute that Keras has not set may hold what is looked for."""
    containers = (*_CONTAINERS, dict, np.ndarray, types.FunctionType, types.MethodType)
    return isinstance(value, containers) or origin_of(type(value)) not in (Origin.TRAINING, Origin.STANDARD)


@functools.lru_cache(maxsize=256)
def _set_by_keras(kind: Any) -> frozenset[str]:
    """Returns the names of the attributes that a class of Keras's, or the bases of another, set."""
    classes = [base for base in kind.__mro__ if origin_of(base) is not Origin.USER]
    members = [function_of(member) for base in classes for member in tuple(vars(base).values())]
    functions = (each for each in members if isinstance(each, types.FunctionType))
    return frozenset().union(*(stored_in(function.__code__, "STORE_ATTR") for function in functions))


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    """Yields what a function closes over, has as defaults, and names."""
    yield from (function.__closure__ or (), function.__defaults__ or (), function.__kwdefaults__ or {})
    yield vars(function)
    if origin_of(function) is Origin.USER:
        yield from (value for value in _named_in(function) if not isinstance(value, types.ModuleType))


def _named_in(function: types.FunctionType) -> Iterator[Any]:
    """Yields what the global names in a function's code stand for, also in modules of the user's."""
    names, spaces, seen = code.names_in(function.__code__), [function.__globals__], set()
    for name in names:
        modules = imported(name, function.__globals__.get("__package__"))
        spaces += [vars(module) for module in modules if origin_of(module) is Origin.USER]
    while spaces:
        space = spaces.pop()
        if id(space) in seen:
            continue
        seen.add(id(space))
        for name in names & space.keys():
            found = space.get(name)
            yield found
            if isinstance(found, types.ModuleType) and origin_of(found) is Origin.USER:
                spaces.append(vars(found))


def _behind(proxy: Any) -> tuple[Any, ...]:
    """Returns what a weak proxy stands for, if it still lives."""
    try:
        return (proxy.__init__.__self__,)  # it hands out the methods of what it stands for
    except (AttributeError, ReferenceError):
        return ()
