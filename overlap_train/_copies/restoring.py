"""Copies put back where they were.

Lists, dicts, sets, deques, arrays, variables, generators and objects that are still in their places are
changed in place, so that all that share them see it. Where none is, a new one is made, except for variables,
generators and objects: the file does not say how. A value that several names share stays shared.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from overlap_train._copies.generators import GeneratorValue, put_generator, takes
from overlap_train._copies.values import (
    GET_STATE,
    SIMPLE,
    Copier,
    Foreign,
    NotPlainError,
    ObjectValue,
    Parts,
    VariableValue,
    has_get_state,
    is_variable,
    keeps,
    parts_of,
    tf_variable,
)


class NotPutBackError(Exception):
    """A value has nowhere to go, and what is there stays as it is; the text says why."""


class Restorer:
    """Puts copies back; each can be put back any number of times, with a new restorer.

    `foreign`, `parts` and `apart` are those of a `Copier`. `stay` names the attributes that could not be put
    back, with the reasons.
    """

    def __init__(
        self, foreign: Foreign = frozenset, *, parts: Parts = parts_of, apart: Iterable[Any] = ()
    ) -> None:
        self.stay: list[str] = []
        self._parts = parts
        self._copier = Copier(foreign, parts=parts, copy_arrays=False, apart=apart)
        self._new: dict[int, Any] = {}
        self._used: dict[int, Any] = {}  # live values that copies have been put into

    def attributes(self, live: Any, values: Mapping[str, Any], label: str) -> None:
        """Put the parts of an object back."""
        parts = self._parts(live) or {}
        for name, value in values.items():
            if name == GET_STATE:
                if has_get_state(live):
                    live.set_state(self.put(None, value))
                continue
            present, where = parts.get(name), f"{label}.{name}" if label else name
            try:
                if name in parts and not self._is_plain(present):
                    if value is None:  # it has been opened since
                        continue
                    raise NotPutBackError(f"its place holds a value of type {type(present).__name__}")
                new = self.put(present, value, where)
                if new is not present and not keeps(type(live), name):
                    raise NotPutBackError("it is no attribute")
            except NotPutBackError as error:
                self.stay.append(f"{where} ({error})")
                continue
            if new is not present:
                object.__setattr__(live, name, new)

    def put(self, live: Any, value: Any, label: str = "") -> Any:
        """Return what a copy becomes: the live object if that can be changed to it."""
        if type(value) in SIMPLE:
            return value
        if id(value) not in self._new:
            new = self._put(live if id(live) not in self._used else None, value, label)
            self._new[id(value)] = self._used[id(new)] = new
        return self._new[id(value)]

    def _put(self, live: Any, value: Any, label: str) -> Any:
        if isinstance(value, (VariableValue, GeneratorValue, ObjectValue)):
            self._put_into(live, value, label)
            return live
        if isinstance(value, np.ndarray):
            return _write(live, value)
        if isinstance(value, dict):
            present = live if isinstance(live, dict) else {}
            content = {k: self.put(dict.get(present, k), each, label) for k, each in value.items()}
            if isinstance(value, collections.defaultdict) and type(live) is not type(value):
                raise NotPutBackError("there is no defaultdict in its place")
            return _refill(live, content, type(value))
        if isinstance(value, (list, tuple, collections.deque)):
            places = itertools.chain(live if type(live) is type(value) else (), itertools.repeat(None))
            items = [self.put(place, each, label) for each, place in zip(value, places, strict=False)]
            other_length = getattr(live, "maxlen", None) != getattr(value, "maxlen", None)
            if isinstance(value, collections.deque) and (other_length or type(live) is not type(value)):
                live = collections.deque(maxlen=value.maxlen)
            return _refill(live, items, type(value))
        return _refill(live, value, set) if isinstance(value, set) else value

    def _put_into(self, live: Any, value: Any, label: str) -> None:
        """Change what is there to what the file does not say how to make."""
        if isinstance(value, VariableValue):
            _assign(live, value)
        elif isinstance(value, ObjectValue):
            if type(live).__name__ != value.kind:
                raise NotPutBackError(f"there is no {value.kind} in its place")
            self.attributes(live, value.attributes, label)
        elif takes(live, value):
            put_generator(live, value)
        else:
            raise NotPutBackError(f"there is no {value.kind} in its place")

    def _is_plain(self, live: Any) -> bool:
        try:
            self._copier.copy(live)
        except NotPlainError:
            return False
        return True


def _assign(live: Any, value: VariableValue) -> None:
    if not is_variable(live):
        raise NotPutBackError("there is no variable in its place")
    target, content = tf_variable(live), value.tensor
    if target.dtype != content.dtype or not target.shape.is_compatible_with(content.shape):
        raise NotPutBackError(
            f"it was a variable of {content.shape} {content.dtype.name}, and now it is one of "
            f"{target.shape} {target.dtype.name}"
        )
    target.assign(content)


def _write(live: Any, value: Any) -> Any:
    fits = type(live) is np.ndarray and (live.shape, live.dtype) == (value.shape, value.dtype)
    if not fits or not live.flags.writeable:
        return value.copy()
    live[...] = value
    return live


def _refill(live: Any, content: Any, kind: Any) -> Any:
    """Return the live container with a new content, or a new one if the live one is of another kind."""
    if type(live) is not kind or kind is tuple:
        return kind(content)
    live.clear()
    (live.extend if kind in (list, collections.deque) else live.update)(content)
    return live
