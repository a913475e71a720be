"""The plain values of Python's that a user's metrics compute with, such as `self.beta`.

Keras reads them anew with each result, a trace once. So a trace will do for as long as they are what they
were when it was made; whoever trains asks that again after each hook that may have set one.
"""

from __future__ import annotations

import contextlib
import enum
import types
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from overlap_train._inspection.code import function_of, functions_in, names_in, stored_in
from overlap_train._inspection.lookup import MISSING, look_up, variables_of
from overlap_train._inspection.metric_code import (
    Read,
    in_words,
    methods_of_metrics,
    metrics_by_python,
    reads_of,
    reads_python,
)
from overlap_train._inspection.origins import Origin, is_simple, origin_of
from overlap_train._inspection.reads import Place, Reading
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models

__all__ = ["NO_CONSTANTS", "Constants", "constants_of"]

# What is larger is not looked through.
_MOST_BYTES, _MOST_ITEMS, _MOST_LEVELS = 1 << 20, 1_000, 4
_STORES = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF")
_STORES_ITEMS = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
_STORING = frozenset({"setattr", "delattr", "__setattr__", "__dict__", "vars", "globals", "exec", "eval"})
_CHANGING_ITEMS = frozenset({"add", "append", "appendleft", "clear", "discard", "extend", "fill", "insert"})
_CHANGING_ITEMS |= {"itemset", "pop", "popitem", "popleft", "put", "remove", "resize", "reverse"}
_CHANGING_ITEMS |= {"setdefault", "sort", "update"}
_WHEN_MADE = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "from_config", "get_config"})
_MAKING_OR_SHOWING = _WHEN_MADE | {"__eq__", "__hash__", "__repr__", "__str__", "__init_subclass__"}
_MAKING_OR_SHOWING |= {"__setattr__", "__delattr__", "__replace__", "__match_args__", "__getstate__"}


class Constants:
    """What metrics compute with of Python, as it was when they were traced.

    Args:
        roots: the metrics, and the model's method that reads them; none if all are Keras's that read nothing.
    """

    def __init__(self, roots: Sequence[Any] = ()) -> None:
        self._roots = roots
        self._reading = self._read()

    def __bool__(self) -> bool:
        return bool(self._roots)

    def changed(self) -> str | None:
        """Returns what has been set to another value since, in words; None if nothing was."""
        if not self._roots:
            return None
        now = self._read()
        if now is None or self._reading is None:
            return "something that its code may read"
        return now.change_since(self._reading)

    def _read(self) -> Reading | None:
        # Reading asks objects of any class for attributes and lengths; what they raise is no reason to fail.
        with contextlib.suppress(Exception):
            return Reading(self._roots)
        return None


NO_CONSTANTS = Constants()


class _NotHeldError(Exception):
    """What a method reads is no plain value, or is set by itself; with what it does, in words."""


def constants_of(model: keras.Model) -> tuple[Constants, str | None]:
    """Returns what the metrics of a model are set back and read with of Python.

    Returns:
        It, and None; or nothing, and what Python makes or reads besides plain values, in words.
    """
    named = function_of(look_up(model, "metrics"))
    if not models.is_stock_method(model.reset_metrics) or reads_python(model, named):
        return NO_CONSTANTS, metrics_by_python(model)
    for owner, name, method in methods_of_metrics(model):
        try:
            _require_plain(owner, method)
        except _NotHeldError as error:
            return NO_CONSTANTS, f"{type(owner).__name__}.{name} {error}"
    roots = [metric for metric in keras_metrics.metric_leaves(model) if not _reads_nothing(metric)]
    own = [] if models.is_stock_method(model.get_metrics_result) else [model.get_metrics_result]
    return Constants([*roots, *own]), None


def _reads_nothing(metric: keras.metrics.Metric) -> bool:
    """Whether a metric is one of Keras's whose result is made of its variables alone."""
    simple = isinstance(metric, (keras.metrics.Mean, keras.metrics.Sum))
    return simple and models.is_stock_method(type(metric))


def _require_plain(owner: Any, method: Any) -> None:
    """Raises _NotHeldError if something that a method reads is no plain value, or its own code sets it."""
    waiting = [(owner, read) for read in reads_of(owner, method)]
    looked_into: list[Any] = []
    while waiting:
        own, (place, function) = waiting.pop()
        # Of a library's function not all is read that it names.
        if function is None or not place.name or origin_of(function) is not Origin.USER:
            raise _NotHeldError(in_words(place))
        if _is_plain_data(place.found):
            _require_kept(place, (own, place.owner), function)
        elif not any(place.found is each for each in looked_into):
            looked_into.append(place.found)
            waiting += [(place.found, read) for read in _reads_inside(place, function)]


def _reads_inside(place: Place, function: types.FunctionType) -> Iterator[Read]:
    """Yields what code finds in an object of a class of the user's, such as a configuration.

    Raises:
        _NotHeldError: it is no such object, or what it has is not known without asking it.
    """
    thing = place.found
    kind = thing if isinstance(thing, type) else type(thing)
    is_container = isinstance(thing, (dict, list, tuple, set, frozenset))
    if origin_of(kind) is not Origin.USER or is_container or not all(map(_is_harmless, kind.__mro__)):
        raise _NotHeldError(in_words(place))
    plain = {name for name, value in variables_of(thing).items() if _is_plain_data(value)}
    for name in names_in(function.__code__) | (set() if thing is kind else plain):  # as for `==`
        found = look_up(thing, name)
        member = function_of(found)
        if isinstance(member, types.FunctionType):
            yield from reads_of(thing, member)
        elif found is not MISSING:
            yield Read(Place(thing, name, found), function)


def _is_harmless(kind: type) -> bool:
    """Whether Python calls nothing in a class without its name, but to make, show or compare an object."""
    if origin_of(kind) is not Origin.USER:
        return kind in (object, enum.Enum) or origin_of(kind) is Origin.STANDARD
    members = ((name, function_of(member)) for name, member in vars(kind).items() if name.startswith("__"))
    return {name for name, member in members if isinstance(member, types.FunctionType)} <= _MAKING_OR_SHOWING


def _require_kept(place: Place, owners: tuple[Any, ...], function: types.FunctionType) -> None:
    """Raises _NotHeldError if code that Keras calls of an object may set a value that it reads."""
    itself = f"reads {place.name!r}, which it may set itself"
    changes = not is_simple(place.found) and not isinstance(place.found, (tuple, frozenset, np.generic))
    called = [own for owner in owners for own in _called(owner, function)]
    for code in (function.__code__, *(own.__code__ for own in called)):
        names, stored = names_in(code), stored_in(code, *_STORES)
        if place.name in stored or not names.isdisjoint(_STORING):
            raise _NotHeldError(itself)
        if changes and (stored_in(code, *_STORES_ITEMS) or not names.isdisjoint(_CHANGING_ITEMS)):
            raise _NotHeldError(itself)


def _called(owner: Any, function: types.FunctionType) -> list[types.FunctionType]:
    """Returns the functions of an object's class that Keras or a function calls, and that these call."""
    if isinstance(owner, (dict, types.CellType)):
        return []
    kinds = (owner if isinstance(owner, type) else type(owner)).__mro__
    own = [kind for kind in kinds if origin_of(kind) in (Origin.USER, Origin.LIBRARY)]
    members = {name for kind in own for name in vars(kind)} - _MAKING_OR_SHOWING
    by_keras = {name for kind in kinds if origin_of(kind) is Origin.TRAINING for name in vars(kind)}
    new = {name for name in members if name in by_keras or name.startswith("__")}
    new |= members & names_in(function.__code__)
    named: set[str] = set()
    found: list[types.FunctionType] = []
    while new:
        named |= new
        held = [vars(kind)[name] for name in new for kind in own if name in vars(kind)]
        functions = [each for member in held for each in functions_in(member)]
        found += functions
        new = members.intersection(name for each in functions for name in names_in(each.__code__)) - named
    return found


def _is_plain_data(value: Any, levels: int = _MOST_LEVELS) -> bool:
    """Whether a value is a number, a text, a small array, or a small container of these."""
    if is_simple(value):
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return not value.dtype.hasobject and value.nbytes <= _MOST_BYTES
    if not isinstance(value, (tuple, list, dict, set, frozenset)) or origin_of(type(value)) is Origin.USER:
        return False
    if len(value) > _MOST_ITEMS or levels == 0:
        return False
    items = [each for pair in value.items() for each in pair] if isinstance(value, dict) else value
    return all(_is_plain_data(each, levels - 1) for each in items)
