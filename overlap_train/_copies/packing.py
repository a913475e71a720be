"""Copies as the named arrays and the JSON that a checkpoint holds, and back.

In the JSON, None, bool, int, float, str and lists stand for themselves. Any other value is a dict of one
entry that names its kind: `{"tuple": […]}`, `{"dict": [[key, value], …]}`, or `{"array": name}`. Integers of
more digits than JSON takes are written in base 16, and long lists of numbers as arrays. Mutable values have
numbers, in the order of writing; a second place of one is `{"again": number}`.
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

from overlap_train._copies.generators import GeneratorValue, make_generator
from overlap_train._copies.values import DEEPEST, ObjectValue, VariableValue
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError

Arrays = dict[str, npt.NDArray[Any]]

# What a copy stands in adds a few: the list of all callbacks, the parts of a state.
_DEEPEST = DEEPEST + 8
# Python's text of longer integers may be limited to 640 digits, and is by default to 4300.
_LONGEST_INT_BITS = 2000
# A list of more numbers is an array: the losses of a million batches would be most of the JSON.
_SHORT_LIST = 256
# Python gives -1 and -2 the same hash, so that points of a grid share theirs, by 64 in six dimensions.
_MOST_OF_ONE_HASH = 64
# What Python, NumPy and TensorFlow raise for values of the wrong type, range, size or depth.
_UNFIT = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError),
    *(OSError, tf.errors.OpError),
)


def pack(value: Any, prefix: str) -> tuple[Arrays, Any]:
    """Split a copy into arrays, which share its memory, and JSON, to be handed to `unpack`."""
    packer = _Packer(prefix)
    packed = packer.pack(value)
    return packer.arrays, packed


def unpack(arrays: Mapping[str, npt.NDArray[Any]], packed: Any, *, sharing: bool = True) -> Any:
    """Put a copy together again from what `pack` made, or raise CheckpointCorruptError.

    `sharing` says whether two names may hold the same value. A reader of such a copy must look at no value
    twice, or a small file would keep it busy for ever.
    """
    try:
        return _Unpacker(arrays, sharing).unpack(packed)
    except _UNFIT as error:
        raise CheckpointCorruptError(
            f"A state in it is invalid ({error_text(error):.160}). Take an older checkpoint or start afresh."
        ) from error


class _Packer:
    """Writes values as JSON, and collects their arrays."""

    def __init__(self, prefix: str) -> None:
        self.arrays: Arrays = {}
        self._prefix = prefix
        self._numbers: dict[int, int] = {}

    def pack(self, value: Any) -> Any:
        """Return the JSON of a value."""
        # NumPy's scalars come first: np.float64 is a float too.
        if isinstance(value, np.generic):
            return {"scalar": self._store(value)}
        if isinstance(value, int) and value.bit_length() > _LONGEST_INT_BITS:
            return {"int": hex(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        for name, (kind, write, _) in _TEXTS.items():
            if isinstance(value, kind):
                return {name: write(value)}
        if isinstance(value, tuple):
            return {"tuple": [*map(self.pack, value)]}
        if isinstance(value, frozenset):
            return {"frozenset": self._members(value)}
        if tf.is_tensor(value):
            return {"tensor": self._store(value.numpy())}
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._numbers)
        return self._changeable(value)

    def _changeable(self, value: Any) -> Any:
        if isinstance(value, list):
            return self._list(value)
        if isinstance(value, dict):
            return {"dict": [[self.pack(key), self.pack(item)] for key, item in value.items()]}
        if isinstance(value, set):
            return {"set": self._members(value)}
        if isinstance(value, collections.deque):
            return {"deque": [value.maxlen, [*map(self.pack, value)]]}
        if isinstance(value, np.ndarray):
            return {"array": self._store(value)}
        if isinstance(value, VariableValue):
            return {"variable": self._store(value.tensor.numpy())}
        if isinstance(value, GeneratorValue):
            return {"generator": [value.kind, self.pack(value.state)]}
        if isinstance(value, ObjectValue):
            attributes = {name: self.pack(part) for name, part in value.attributes.items()}
            return {"object": [value.kind, attributes, self.pack(value.items), list(value.lost)]}
        raise TypeError(f"a {type(value).__name__}, which no checkpoint holds")

    def _list(self, items: list[Any]) -> Any:
        kinds = set(map(type, items)) if len(items) > _SHORT_LIST else set()
        if kinds == {float}:
            return {"floats": self._store(np.array(items, np.float64))}
        if kinds == {int}:
            with contextlib.suppress(OverflowError):
                return {"ints": self._store(np.array(items, np.int64))}
        return items if kinds == {str} else [*map(self.pack, items)]

    def _members(self, members: Collection[Any]) -> list[Any]:
        """Write the members of a set in a fixed order, so that equal sets are written alike."""
        return [*map(self.pack, sorted(members, key=lambda member: (type(member).__name__, repr(member))))]

    def _store(self, content: Any) -> str:
        key = f"{self._prefix}/{len(self.arrays)}"
        self.arrays[key] = np.asarray(content)
        return key


class _Unpacker:
    """Makes values from their JSON."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], sharing: bool) -> None:
        self._arrays = dict(arrays)  # each belongs to one value, which removes it
        self._sharing = sharing
        self._values: list[tuple[Any, int] | None] = []  # the numbered ones, with the depth of what they hold
        self._deepest = 0

    def unpack(self, value: Any, depth: int = 0) -> Any:
        """Return a value from its JSON, which `depth` other values contain."""
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
            return _FROM_ARRAY[kind](self._arrays.pop(content))
        return self._numbered(kind, content, depth)

    def _numbered(self, kind: str, content: Any, depth: int) -> Any:
        number, outside = len(self._values), self._deepest
        self._values.append(None)
        self._deepest = depth
        value = self._changeable(kind, content, depth)
        self._values[number] = value, self._deepest - depth
        self._deepest = max(self._deepest, outside)
        return value

    def _changeable(self, kind: str, content: Any, depth: int) -> Any:
        if kind in _FROM_ARRAY:
            return _FROM_ARRAY[kind](self._arrays.pop(content))
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
            generator = GeneratorValue(_of_type(name, str), self.unpack(state, depth + 1))
            make_generator(generator)  # raises for an invalid state
            return generator
        if kind != "object":
            raise KeyError(kind)
        name, attributes, items, lost = content
        parts = {n: self.unpack(part, depth + 1) for n, part in _of_type(attributes, dict).items()}
        names = [_of_type(each, str) for each in _of_type(lost, list)]
        return ObjectValue(_of_type(name, str), parts, self.unpack(items, depth + 1), tuple(names))

    def _items(self, items: Any, depth: int) -> list[Any]:
        return [self.unpack(item, depth + 1) for item in _of_type(items, list)]

    def _again(self, number: Any, depth: int) -> Any:
        entry = self._values[number] if self._sharing else None
        if entry is None:
            raise ValueError(f"a value that is shared as {number!r:.80}")
        value, height = entry
        self._reach(depth + height)
        return value

    def _reach(self, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError(f"a value that is nested more than {_DEEPEST} deep")
        self._deepest = max(self._deepest, depth)


def _of_type(content: Any, kind: type) -> Any:
    """Return a value of a file if it has the type that is written in its place, or raise TypeError."""
    if type(content) is not kind:
        raise TypeError(f"a value that is made of a {type(content).__name__}")
    return content


def _spread(members: list[Any]) -> list[Any]:
    """Return members of a set, or keys of a dict, unless many have one hash: each is compared with those."""
    count = max(collections.Counter(map(hash, members)).values(), default=0)
    if count > _MOST_OF_ONE_HASH:
        raise ValueError(f"{count} members of a set that have one hash")
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


_FROM_ARRAY: Mapping[str, Any] = {
    "array": lambda array: array,
    "floats": functools.partial(_numbers, np.float64),
    "ints": functools.partial(_numbers, np.int64),
    "scalar": _scalar,
    "tensor": _tensor,
    "variable": lambda array: VariableValue(_tensor(array)),
}
# Immutable values: their types, how they are written, and how they are read.
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
