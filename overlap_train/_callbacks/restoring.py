"""Copies put back where they were.

Lists, dicts, sets, deques, arrays, variables, generators and objects that are still in their places are
changed in place, so that all that share them see it. Where none is, a new one is made, except for variables,
generators and objects: the file does not say how. A value that several names share stays shared.
"""

from __future__ import annotations

import collections
import datetime
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train._callbacks.generators import put_state
from overlap_train._callbacks.values import (
    DICTS,
    GET_STATE,
    TEXTS,
    Copier,
    Foreign,
    Node,
    NotPlainError,
    ObjectValue,
    Parts,
    has_get_state,
    is_variable,
    keeps,
    parts_of,
    tf_variable,
)

_SEQUENCES: Mapping[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_MAPPINGS: Mapping[str, Any] = {kind.__name__: kind for kind in DICTS}
# Immutable values, from what stands for them.
_MADE: Mapping[str, Callable[[Any], Any]] = {
    **{name: read for name, (_, _, read) in TEXTS.items()},
    "datetime": datetime.datetime.fromisoformat,
    "int": lambda text: int(text, 16),
    "scalar": lambda array: array[()],
    "tensor": tf.convert_to_tensor,
}


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
        self._made: dict[int, Any] = {}  # what is named in several places, by its number
        self._used: dict[int, Any] = {}  # live values that copies have been put into

    def attributes(self, live: Any, values: Mapping[str, Node], label: str) -> None:
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

    def put(self, live: Any, node: Node, label: str = "") -> Any:
        """Return what a copy becomes: the live object if that can be changed to it."""
        if not isinstance(node, dict):
            return node
        kind, content = next(iter(node.items()))
        if kind == "again":
            if content not in self._made:
                raise NotPutBackError("what it shares with others is not put back")
            return self._made[content]
        new = self._put(live if id(live) not in self._used else None, kind, content, label)
        self._used[id(new)] = new
        if "id" in node:
            self._made[node["id"]] = new
        return new

    def _put(self, live: Any, kind: str, content: Any, label: str) -> Any:
        if kind in _MADE:
            return _MADE[kind](content)
        if kind in ("variable", "generator", "object"):
            self._put_into(live, kind, content, label)
            return live
        if kind == "array":
            return _write(live, content)
        if kind in ("floats", "ints"):
            return _refill(live, content.tolist(), list)
        if kind in _MAPPINGS:
            present = live if isinstance(live, dict) else {}
            keys = [self.put(None, key) for key, _ in content]
            pairs = zip(keys, content, strict=True)
            parts = [self.put(dict.get(present, key), part, label) for key, (_, part) in pairs]
            if kind == "defaultdict" and type(live) is not collections.defaultdict:
                raise NotPutBackError("there is no defaultdict in its place")
            return _refill(live, dict(zip(keys, parts, strict=True)), _MAPPINGS[kind])
        if kind == "state":
            return ObjectValue(content[0], dict(content[1]), tuple(content[2]))
        maxlen = None
        if kind == "deque":
            maxlen, content = content
        new = collections.deque if kind == "deque" else _SEQUENCES[kind]
        is_ordered = kind not in ("set", "frozenset") and type(live) is new
        places = itertools.chain(live if is_ordered else (), itertools.repeat(None))
        items = [self.put(place, each, label) for each, place in zip(content, places, strict=False)]
        if kind == "deque" and (type(live) is not new or live.maxlen != maxlen):
            live = collections.deque(maxlen=maxlen)
        return _refill(live, items, new)

    def _put_into(self, live: Any, kind: str, content: Any, label: str) -> None:
        """Change what is there to what the file does not say how to make."""
        if kind == "variable":
            _assign(live, tf.convert_to_tensor(content))
            return
        name = content[0]
        if kind == "generator":
            fits = put_state(live, name, self.put(None, content[1]))
        else:
            fits = type(live).__name__ == name
        if not fits:
            raise NotPutBackError(f"there is no {name} in its place")
        if kind == "object":
            self.attributes(live, dict(content[1]), label)

    def _is_plain(self, live: Any) -> bool:
        try:
            self._copier.copy(live)
        except NotPlainError:
            return False
        return True


def _assign(live: Any, content: tf.Tensor) -> None:
    if not is_variable(live):
        raise NotPutBackError("there is no variable in its place")
    target = tf_variable(live)
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
    if type(live) is not kind or kind in (tuple, frozenset):
        return kind(content)
    live.clear()
    (live.extend if kind in (list, collections.deque) else live.update)(content)
    return live
