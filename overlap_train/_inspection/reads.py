"""Where Python's code finds what it computes with: global names, cells of closures, and attributes.

A trace computes with numbers, texts and flags once and for all. What is read here is the code, not a trace:
the names in a function, and what they stand for now. None of it is run. Of containers and memory their state
is taken, of large ones a part.
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import ctypes
import functools
import gc
import logging
import os
import types
import weakref
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from overlap_train._inspection.code import (
    MISSING,
    OF_FUNCTIONS,
    SIMPLE,
    Origin,
    Unclear,
    cells_of,
    functions_in,
    imported,
    is_simple,
    look_up,
    names_in,
    origin_of,
    texts_in,
    variables_of,
)
from overlap_train._keras import models as keras_models

__all__ = ["Place", "Reading", "change_between", "closed_over", "named_in", "state_of", "try_reading"]


CONTAINERS = (dict, list, set, collections.deque)
BUFFERS = (
    bytearray,
    array.array,
    memoryview,
    ctypes.Array,
    ctypes.Structure,
    ctypes._SimpleCData,
)
# Of what is larger only a part is looked at.
_MOST_ITEMS, _MOST_BYTES, _SAMPLES = 1_000, 1 << 24, 4_096


def state_of(thing: Any) -> Any:
    """Returns what tells one state of a container, an array or memory from another; of large ones a part."""
    if isinstance(thing, (np.ndarray, *BUFFERS)):
        return _digest_of(thing)
    if isinstance(thing, Mapping):
        return len(thing), [(_brief(key), _brief(value)) for key, value in some(thing.items())]
    return len(thing), [_brief(each) for each in some(thing)]


def some(things: Iterable[Any]) -> list[Any]:
    """Returns the things, or those at both ends of many."""
    found = list(things)
    return found if len(found) <= _MOST_ITEMS else [*found[: _MOST_ITEMS // 2], *found[-_MOST_ITEMS // 2 :]]


def _digest_of(thing: Any) -> Any:
    """Returns a checksum of memory; None for memory that its holders cannot write to, or that is closed."""
    try:
        values = thing if isinstance(thing, np.ndarray) else np.frombuffer(thing, np.uint8)
    except (BufferError, TypeError, ValueError):
        return None
    if values.dtype.hasobject:
        return values.shape, [_brief(each) for each in some(values.flat)]
    if values.nbytes > _MOST_BYTES:
        if not values.flags.writeable:
            return None
        step = values.size // _SAMPLES
        values = np.concatenate([values.flat[:_SAMPLES], values.flat[-_SAMPLES:], values.flat[::step]])
    return values.shape, zlib.crc32(values.tobytes())


def _brief(value: Any) -> Any:
    """Returns what tells a value from another: simple ones by what they are, objects by which they are."""
    return value if is_simple(value) else id(value)


# Who reads more is not followed to the end.
_MOST_OBJECTS = 100_000
_ENDS = (
    *(tf.Tensor, tf.Variable, keras.KerasTensor, keras.Variable, keras.optimizers.Optimizer, np.generic),
    *(tf.data.Dataset, types.BuiltinFunctionType, types.CodeType, logging.Logger, logging.Handler),
)
_PARTS = (keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric)
_CODE = (types.FunctionType, types.MethodType, functools.partial, keras.regularizers.Regularizer)
_SIMPLE = frozenset(SIMPLE)
# Where Keras keeps the arguments of a function of the user's.
_ARGUMENTS = frozenset({"arguments", "_fn_kwargs"})
_ARRAYS = (tf.Tensor, np.ndarray, np.generic)
_MEMBERS = (property, classmethod, staticmethod, functools.cached_property, functools.partialmethod)
# What Keras sets itself while it trains, and no step reads.
_SET_BY_TRAINING = frozenset({"built", "history", "stop_evaluating", "stop_training"})
# Keras calls these before a validation, or never in one.
_NOT_IN_VALIDATION = frozenset(
    {"build", "compile", "fit", "from_config", "get_config", "predict", "predict_step", "quantize", "save"}
    | {"train_on_batch", "train_step"}
)
_BEFORE = frozenset({"__init__", "__init_subclass__", "__new__", "__post_init__", "__setstate__"})


class Place(NamedTuple):
    """Where code finds a value."""

    owner: Any  # an object, a class, the variables of a module, or a cell of a closure
    name: str  # of the attribute or the variable; empty for all that a container or an array holds
    value: Any  # or the state of what the owner holds
    within: str = ""  # what stands before the name in words

    @property
    def label(self) -> str:
        """The place in words."""
        return self.within + self.name.lstrip("_")

    def is_as(self, other: Place) -> bool:
        """Whether the same has been found there as at another time."""
        if self.value is other.value:
            return True
        return is_plain(self.value) and is_plain(other.value) and repr(self.value) == repr(other.value)

    def is_new(self, names: Collection[str]) -> bool:
        """Whether code that has some names reads what was not there: what a class says counted until then."""
        default = look_up(type(self.owner), self.name) if self.name else self.value
        return self.name in names if default is MISSING else not self.is_as(self._replace(value=default))


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, None or a tuple of these."""
    return is_simple(value) or (type(value) is tuple and all(map(is_plain, value)))


def closed_over(function: types.FunctionType) -> Iterator[Place]:
    """Yields the variables of enclosing functions that a function reads."""
    for name, cell in cells_of(function).items():
        yield Place(cell, name, look_up(cell, name))


def named_in(function: types.FunctionType, *, imports: bool = False) -> Iterator[Place]:
    """Yields the global names in a function's code, and those in the user's modules that the code names.

    With `imports`, modules count that the function may import itself.
    """
    names, spaces, seen = names_in(function.__code__), [function.__globals__], set()
    for name in names if imports else ():
        modules = imported(name, function.__globals__.get("__package__"))
        spaces += [vars(module) for module in modules if origin_of(module) is Origin.USER]
    while spaces:
        space = spaces.pop()
        if id(space) in seen:
            continue
        seen.add(id(space))
        for name in names & space.keys():
            found = space.get(name)
            yield Place(space, name, found)
            if isinstance(found, types.ModuleType) and origin_of(found) is Origin.USER:
                spaces.append(vars(found))


class _Holder(NamedTuple):
    """What has attributes, of which those count that code names."""

    owner: Any
    variables: Mapping[str, Any]
    within: str


class Reading:
    """Where a validation finds values that runs the user's code on some objects; each thing is met once."""

    def __init__(self, roots: Iterable[Any]) -> None:
        # by what tells them apart. What has been found is kept alive
        self.places: dict[tuple[int, str], Place] = {}
        # the layers, losses and metrics by their `id`, with the plain attributes of each
        self.parts: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.names: set[str] = set()  # all names in that code, and the texts in it that may be names
        self._new_names: set[str] = set()
        self._seen: dict[int, Any] = {}
        self._classes: set[tuple[type, bool]] = set()
        self._holders: dict[int, _Holder] = {}
        self._waiting: list[tuple[Any, str]] = [(root, "") for root in roots]
        while self._waiting or self._new_names:
            while self._waiting:
                self._meet(*self._waiting.pop())
            self._follow_names()

    def change_since(self, before: Reading) -> str | None:
        """Returns where something else is found than another reading has found, in words, or None."""
        now, then = dict(self.places), dict(before.places)
        for number, (_, plain) in self.parts.items():
            if number in before.parts and before.parts[number][1] != plain:
                now |= self._plain_places(number)
                then |= before._plain_places(number)
        for key, place in now.items():
            if place.is_new(self.names) if key not in then else not place.is_as(then[key]):
                return place.label
        return next((place.label for key, place in then.items() if key not in now), None)

    def _plain_places(self, number: int) -> dict[tuple[int, str], Place]:
        part, plain = self.parts[number]
        within = f"{type(part).__name__}."
        return {(number, name): Place(part, name, value, within) for name, value in plain.items()}

    def _follow_names(self) -> None:
        """Looks for the names that have been met since in all that has been met before."""
        new, self._new_names = self._new_names - self.names, set()
        self.names |= new
        for holder in self._holders.values() if new else ():
            self._take(holder, new)
        if not new.isdisjoint(("environ", "getenv")):
            self._hold_whole(os.environ, "os.environ")

    def _meet(self, thing: Any, label: str) -> None:
        """Finds out what a thing is, and what is to be met behind it."""
        if is_simple(thing) or id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing  # held, so that its `id` stays its own
        if len(self._seen) > _MOST_OBJECTS:
            raise Unclear
        if isinstance(thing, types.FunctionType):
            self._call(thing)
        elif isinstance(thing, type):
            self._read_class(thing, made=True)
        elif isinstance(thing, types.ModuleType):
            if origin_of(thing) is Origin.USER:
                self._hold(_Holder(vars(thing), vars(thing), ""))
        elif isinstance(thing, (*CONTAINERS, *BUFFERS, np.ndarray)):
            self._hold_whole(thing, label)
        elif isinstance(thing, (tuple, frozenset)):
            self._waiting += [(each, label) for each in some(thing)]
        elif not isinstance(thing, _ENDS):
            self._read_object(thing, label)

    def _call(self, function: types.FunctionType) -> None:
        within = f"{function.__name__}."
        self._add(Place(function, name, look_up(function, name), within) for name in OF_FUNCTIONS)
        self._add(place for place in closed_over(function) if place.name != "__class__")
        if origin_of(function) is Origin.USER:
            self._hold(_Holder(function, vars(function), within))
            self._new_names |= names_in(function.__code__) | texts_in(function.__code__)
            self._add(named_in(function, imports=True))

    def _hold_whole(self, thing: Any, label: str) -> None:
        """Notes the state of a container or of memory, and meets what it holds."""
        self.places[id(thing), ""] = Place(thing, "", repr(state_of(thing)), label)
        held: Iterable[Any] = ()
        if isinstance(thing, dict):
            held = (*thing.keys(), *thing.values())
        elif isinstance(thing, CONTAINERS):
            held = thing
        elif isinstance(thing, np.ndarray) and thing.dtype.hasobject:
            held = thing.flat
        self._waiting += [(each, label) for each in some(held)]
        if origin_of(type(thing)) is Origin.USER:
            self._read_object(thing, label)

    def _read_object(self, thing: Any, label: str) -> None:
        kind: Any = type(thing)
        variables = variables_of(thing)
        self._waiting += [(each, label) for each in _behind(thing, variables)]
        if isinstance(thing, contextvars.ContextVar):
            self._add([Place(thing, "", thing.get(None), label)])
        origin, is_part, within = _origin_of_class(kind), isinstance(thing, _PARTS), f"{kind.__name__}."
        if origin is Origin.USER:
            self._read_class(kind, made=False)
        elif origin is Origin.TRAINING and not is_part and not isinstance(thing, _CODE):
            return
        holder = _Holder(thing, variables, within)
        self._hold(holder)
        if is_part:
            plain, others = _attributes_of_step(variables)
            self.parts[id(thing)] = thing, plain
            if isinstance(thing, keras.layers.Layer):
                self._waiting += [(layer, label) for layer in keras_models.flat_layers(thing)]
            self._add(Place(thing, name, value, within) for name, value in others.items())
        elif origin is not Origin.USER:  # whose methods find them
            self._take(holder, variables.keys())

    def _read_class(self, kind: type, *, made: bool) -> None:
        """Notes the members of a class of the user's that code names, or that are called without a name."""
        if (kind, made) in self._classes:
            return
        self._classes.add((kind, made))
        for base in kind.__mro__:
            if origin_of(base) is Origin.USER:
                holder = _Holder(base, vars(base), f"{base.__name__}.")
                self._hold(holder)
                self._take(holder, {name for name in vars(base) if _is_called(kind, name, made=made)})

    def _hold(self, holder: _Holder) -> None:
        if id(holder.owner) not in self._holders:
            self._holders[id(holder.owner)] = holder
            self._take(holder, self.names)

    def _take(self, holder: _Holder, names: Collection[str]) -> None:
        owner, variables, within = holder
        self._add(Place(owner, name, variables[name], within) for name in variables.keys() & names)

    def _add(self, places: Iterable[Place]) -> None:
        for place in places:
            key = id(place.owner), place.name
            if key not in self.places:
                self.places[key] = place
                if type(place.value) not in _SIMPLE:
                    self._waiting.append((place.value, place.label))


def try_reading(roots: Iterable[Any]) -> Reading | None:
    """Returns what is read now, or None if that cannot be told."""
    # Reading asks objects of any class for attributes and lengths; what they raise is no reason to fail.
    with contextlib.suppress(Exception):
        return Reading(roots)
    return None


def change_between(before: Reading | None, now: Reading | None) -> str | None:
    """Returns where something else is found than before, in words, or None."""
    if before is None or now is None:
        return "something that its code may read"
    return now.change_since(before)


def _behind(thing: Any, variables: Mapping[str, Any]) -> list[Any]:
    """Returns what is called or looked at in place of a thing that stands for it."""
    if isinstance(thing, weakref.ref):
        return [thing()]
    if type(thing) in weakref.ProxyTypes:
        return [thing.__init__.__self__]
    if isinstance(thing, _MEMBERS):
        return list(functions_in(thing))
    if "_python_function" in variables:  # of a `tf.function`
        return [variables["_python_function"]]
    kind: Any = type(thing)
    is_standard = _origin_of_class(kind) is Origin.STANDARD  # such as a bound method, or a partial
    return gc.get_referents(thing) if not variables and is_standard else []


def _attributes_of_step(variables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the attributes of a part of the model that Keras's own code may read: plain and others."""
    plain, others = {}, {}
    for name, value in variables.items():
        kind: Any = type(value)
        if kind in _SIMPLE or (kind is tuple and is_plain(value)):
            if name == "_trainable" or not (name[0] == "_" or name in _SET_BY_TRAINING):
                plain[name] = value
        elif name in _ARGUMENTS or (_is_read_by_keras(kind) and name not in _NOT_IN_VALIDATION):
            others[name] = value
    return plain, others


@functools.lru_cache(maxsize=1024)
def _is_read_by_keras(kind: Any) -> bool:
    return issubclass(kind, (*_CODE, *_ARRAYS)) or origin_of(kind) is Origin.USER


@functools.lru_cache(maxsize=1024)
def _origin_of_class(kind: Any) -> Origin:
    return origin_of(kind)


def _is_called(kind: type, name: str, *, made: bool) -> bool:
    """Whether a member of a class is called by Keras or by Python, and not by its name."""
    if name.startswith("__"):
        return isinstance(look_up(kind, name), types.FunctionType) and (made or name not in _BEFORE)
    above = (base for base in kind.__mro__ if origin_of(base) is Origin.TRAINING)
    return name not in _NOT_IN_VALIDATION and any(name in vars(base) for base in above)
