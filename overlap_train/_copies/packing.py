"""Copies as the named arrays and the JSON that a checkpoint holds, and back.

In the JSON, None, bool, int, float, str and lists stand for themselves. All else is a dict of one entry that
says what it is: `{"tuple": […]}`, `{"dict": [[key, value], …]}`, or `{"array": name}`. Integers of more
digits than JSON takes are written in base 16, and long lists of numbers as arrays. What can be changed has a
number, in the order of writing; where it stands again, it is `{"again": number}`.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import functools
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._copies.generators import GeneratorValue, made_generator
from overlap_train._copies.values import DEEPEST, ObjectValue, VariableValue
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError

__all__ = ["pack", "unpack"]

Arrays = dict[str, npt.NDArray[Any]]

# What a copy stands in adds a few: the list of all callbacks, the parts of a state.
_DEEPEST = DEEPEST + 8
# Python's text of longer integers may be limited to 640 digits, and is by default to 4300.
_LONGEST_INT_BITS = 2000
# A list of more numbers is an array: the losses of a million batches would be most of the JSON.
_SHORT_LIST = 256
# Python gives -1 and -2 the same hash, so that points of a grid share theirs, by 64 in six dimensions.
_MOST_ALIKE = 64
# What Python, NumPy and TensorFlow raise for values of the wrong type, range, size or depth.
_UNFIT = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError),
    *(OSError, tf.errors.OpError),
)


def pack(value: Any, prefix: str) -> tuple[Arrays, Any]:
    """Split a copy into arrays, which share its memory, and JSON, to be handed to `unpack`."""
    packer = _Packer(prefix)
    described = packer.packed(value)
    return packer.arrays, described


def unpack(arrays: Mapping[str, npt.NDArray[Any]], described: Any, *, sharing: bool = True) -> Any:
    """Put a copy together again from what `pack` made, or raise CheckpointCorruptError.

    `sharing` says whether two names may hold the same. Who reads such a copy has to look at nothing twice, or
    a small file would keep it busy for ever.
    """
    try:
        return _Unpacker(arrays, sharing).unpacked(described)
    except _UNFIT as error:
        raise CheckpointCorruptError(
            f"A state in it is invalid ({error_text(error):.160}). Take an older checkpoint or start afresh."
        ) from error


class _Packer:
    """Writes values as JSON, and puts their arrays aside."""

    def __init__(self, prefix: str) -> None:
        self.arrays: Arrays = {}
        self._prefix = prefix
        self._numbers: dict[int, int] = {}

    def packed(self, value: Any) -> Any:
        """Return the JSON of a value."""
        # NumPy's scalars come first: np.float64 is a float too.
        if isinstance(value, np.generic):
            return {"scalar": self._stored(value)}
        if isinstance(value, int) and value.bit_length() > _LONGEST_INT_BITS:
            return {"int": hex(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        for name, (kind, written, _) in _TEXTS.items():
            if isinstance(value, kind):
                return {name: written(value)}
        if isinstance(value, tuple):
            return {"tuple": [*map(self.packed, value)]}
        if isinstance(value, frozenset):
            return {"frozenset": self._members(value)}
        if tf.is_tensor(value):
            return {"tensor": self._stored(value.numpy())}
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._numbers)
        return self._changeable(value)

    def _changeable(self, value: Any) -> Any:
        if isinstance(value, list):
            return self._listed(value)
        if isinstance(value, dict):
            return {"dict": [[self.packed(key), self.packed(item)] for key, item in value.items()]}
        if isinstance(value, set):
            return {"set": self._members(value)}
        if isinstance(value, collections.deque):
            return {"deque": [value.maxlen, [*map(self.packed, value)]]}
        if isinstance(value, np.ndarray):
            return {"array": self._stored(value)}
        if isinstance(value, VariableValue):
            return {"variable": self._stored(value.tensor.numpy())}
        if isinstance(value, GeneratorValue):
            return {"generator": [value.kind, self.packed(value.state)]}
        if isinstance(value, ObjectValue):
            attributes = {name: self.packed(part) for name, part in value.attributes.items()}
            return {"object": [value.kind, attributes, self.packed(value.items), list(value.lost)]}
        raise TypeError(f"a {type(value).__name__}, which no checkpoint holds")

    def _listed(self, items: list[Any]) -> Any:
        kinds = set(map(type, items)) if len(items) > _SHORT_LIST else set()
        if kinds == {float}:
            return {"floats": self._stored(np.array(items, np.float64))}
        if kinds == {int}:
            with contextlib.suppress(OverflowError):
                return {"ints": self._stored(np.array(items, np.int64))}
        return items if kinds == {str} else [*map(self.packed, items)]

    def _members(self, members: Collection[Any]) -> list[Any]:
        """Write the members of a set in an order of their own, so that equal sets come to the same."""
        return [*map(self.packed, sorted(members, key=lambda member: (type(member).__name__, repr(member))))]

    def _stored(self, content: Any) -> str:
        key = f"{self._prefix}/{len(self.arrays)}"
        self.arrays[key] = np.asarray(content)
        return key


class _Unpacker:
    """Makes values of their JSON."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], sharing: bool) -> None:
        self._left = dict(arrays)  # each belongs to one value, and is taken out
        self._sharing = sharing
        self._made: list[tuple[Any, int] | None] = []  # what can be changed, and how deep it is in itself
        self._deepest = 0

    def unpacked(self, value: Any, depth: int = 0) -> Any:
        """Return the value of its JSON, which stands so deep in others."""
        self._reach(depth)
        if isinstance(value, list):
            return self._numbered("list", value, depth)
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "again":
            return self._again(content, depth)
        if kind in _TEXTS:
            return _TEXTS[kind][2](_of_type(content, list if kind in ("complex", "timedelta") else str))
        if kind == "int":
            return int(_of_type(content, str), 16)
        if kind in ("tuple", "frozenset"):
            items = self._items(content, depth)
            return tuple(items) if kind == "tuple" else frozenset(_spread(items))
        if kind in ("scalar", "tensor"):
            return _MADE_OF_ARRAY[kind](self._left.pop(content))
        return self._numbered(kind, content, depth)

    def _numbered(self, kind: str, content: Any, depth: int) -> Any:
        number, outside = len(self._made), self._deepest
        self._made.append(None)
        self._deepest = depth
        value = self._changeable(kind, content, depth)
        self._made[number] = value, self._deepest - depth
        self._deepest = max(self._deepest, outside)
        return value

    def _changeable(self, kind: str, content: Any, depth: int) -> Any:
        if kind in _MADE_OF_ARRAY:
            return _MADE_OF_ARRAY[kind](self._left.pop(content))
        if kind == "list":
            return self._items(content, depth)
        if kind == "set":
            return set(_spread(self._items(content, depth)))
        if kind == "dict":
            pairs = [self._items(pair, depth) for pair in _of_type(content, list)]
            _spread([key for key, _ in pairs])
            return dict(pairs)
        if kind == "deque":
            maxlen, items = content
            return collections.deque(self._items(items, depth), maxlen)
        if kind == "generator":
            name, state = content
            generator = GeneratorValue(_of_type(name, str), self.unpacked(state, depth + 1))
            made_generator(generator)  # or raises
            return generator
        if kind != "object":
            raise KeyError(kind)
        name, attributes, items, lost = content
        parts = {n: self.unpacked(part, depth + 1) for n, part in _of_type(attributes, dict).items()}
        lost = [_of_type(each, str) for each in _of_type(lost, list)]
        return ObjectValue(_of_type(name, str), parts, self.unpacked(items, depth + 1), tuple(lost))

    def _items(self, items: Any, depth: int) -> list[Any]:
        return [self.unpacked(item, depth + 1) for item in _of_type(items, list)]

    def _again(self, number: Any, depth: int) -> Any:
        made = self._made[number] if self._sharing else None
        if made is None:
            raise ValueError(f"a value that is shared as {number!r:.80}")
        self._reach(depth + made[1])
        return made[0]

    def _reach(self, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError(f"a value that is nested more than {_DEEPEST} deep")
        self._deepest = max(self._deepest, depth)


def _of_type(content: Any, kind: type) -> Any:
    """Return what a file holds, if it is of the type that is written for it."""
    if type(content) is not kind:
        raise TypeError(f"a value that is made of a {type(content).__name__}")
    return content


def _spread(members: list[Any]) -> list[Any]:
    """Return members of a set, or keys of a dict, if few have one hash: each is compared with these."""
    alike = max(collections.Counter(map(hash, members)).values(), default=0)
    if alike > _MOST_ALIKE:
        raise ValueError(f"{alike} members of a set that have one hash")
    return members


def _tensor(array: npt.NDArray[Any]) -> tf.Tensor:
    if array.dtype.kind in "USmM":
        raise ValueError(f"a tensor of {array.dtype}")
    return tf.constant(array)


def _scalar(array: npt.NDArray[Any]) -> Any:
    if array.shape != ():
        raise ValueError(f"a scalar of shape {array.shape}")
    return array[()]


def _numbers(dtype: type, array: npt.NDArray[Any]) -> list[Any]:
    if array.dtype != dtype or array.ndim != 1:
        raise ValueError(f"a list of numbers of {array.dtype}{array.shape}")
    return array.tolist()


_MADE_OF_ARRAY: Mapping[str, Any] = {
    "array": lambda array: array,
    "floats": functools.partial(_numbers, np.float64),
    "ints": functools.partial(_numbers, np.int64),
    "scalar": _scalar,
    "tensor": _tensor,
    "variable": lambda array: VariableValue(_tensor(array)),
}
# Values that nothing can change: their types, how they are written, and how they are made of that.
_TEXTS: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "path": (type(pathlib.Path()), str, pathlib.Path),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
}
