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
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._copies.generators import GeneratorValue
from overlap_train._copies.values import DICTS, ObjectValue, VariableValue
from overlap_train._keras.randomness import require_numpy_state
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError

Arrays = dict[str, npt.NDArray[Any]]

# Python's text of longer integers may be limited to 640 digits, and is by default to 4300.
_LONGEST_INT_BITS = 2000
# A list of more numbers is an array: the losses of a million batches would be most of the JSON.
_SHORT_LIST = 256
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


def unpack(arrays: Mapping[str, npt.NDArray[Any]], packed: Any) -> Any:
    """Put a copy together again from what `pack` made, or raise CheckpointCorruptError."""
    try:
        return _Unpacker(arrays).unpack(packed)
    except _UNFIT as error:
        raise CheckpointCorruptError(
            f"A state in it is invalid ({error_text(error):.160}). Take an older checkpoint or start afresh."
        ) from error


class _Packer:
    """Writes values as JSON, and collects their arrays."""

    def __init__(self, prefix: str) -> None:
        self.arrays: Arrays = {}
        self._prefix = prefix
        self._numbers: dict[int, int] = {}  # of mutable values, by `id`

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
        if isinstance(value, (tuple, frozenset)):
            is_tuple = isinstance(value, tuple)
            return {"tuple": [*map(self.pack, value)]} if is_tuple else {"frozenset": self._members(value)}
        if isinstance(value, tf.Tensor):
            return {"tensor": self._store(value.numpy())}
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._numbers)
        return self._changeable(value)

    def _changeable(self, value: Any) -> Any:
        if isinstance(value, list):
            return self._list(value)
        if isinstance(value, dict):
            return {type(value).__name__: [[self.pack(key), self.pack(item)] for key, item in value.items()]}
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
            return {"object": [value.kind, attributes, list(value.lost)]}
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

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = dict(arrays)  # each belongs to one value, which removes it
        self._values: list[Any] = []  # the numbered ones

    def unpack(self, value: Any) -> Any:
        """Return a value from its JSON."""
        if not isinstance(value, (dict, list)):
            return value
        entry: Any = value if isinstance(value, dict) else {"list": value}
        ((kind, content),) = entry.items()
        if kind == "again":
            return self._values[content]
        if kind in _TEXTS:
            return _TEXTS[kind][2](content)
        if kind == "int":
            return int(content, 16)
        if kind in ("scalar", "tensor"):
            return _FROM_ARRAY[kind](self._arrays.pop(content))
        if kind in ("tuple", "frozenset"):
            return _COLLECTIONS[kind](map(self.unpack, content))
        number = len(self._values)
        self._values.append(None)
        self._values[number] = self._changeable(kind, content)
        return self._values[number]

    def _changeable(self, kind: str, content: Any) -> Any:
        if kind in _FROM_ARRAY:
            return _FROM_ARRAY[kind](self._arrays.pop(content))
        if kind in _COLLECTIONS:
            return _COLLECTIONS[kind](map(self.unpack, content))
        if kind in _DICTS:
            items = {self.unpack(key): self.unpack(item) for key, item in content}
            return collections.defaultdict(None, items) if kind == "defaultdict" else _DICTS[kind](items)
        if kind == "deque":
            maxlen, items = content
            return collections.deque(map(self.unpack, items), maxlen)
        if kind == "generator":
            name, state = content[0], self.unpack(content[1])
            if name != "Random":  # which looks at what it gets; NumPy's would read past its numbers
                require_numpy_state(state, legacy=name == "RandomState")
            return GeneratorValue(name, state)
        if kind != "object":
            raise KeyError(kind)
        name, attributes, lost = content
        return ObjectValue(name, {n: self.unpack(part) for n, part in attributes.items()}, tuple(lost))


_DICTS: Mapping[str, Any] = {kind.__name__: kind for kind in DICTS}
_COLLECTIONS: Mapping[str, Callable[[Iterable[Any]], Any]] = {
    "list": list,
    "set": set,
    "tuple": tuple,
    "frozenset": frozenset,
}
_FROM_ARRAY: Mapping[str, Callable[[npt.NDArray[Any]], Any]] = {
    "array": lambda array: array,
    "floats": np.ndarray.tolist,
    "ints": np.ndarray.tolist,
    "scalar": lambda array: array[()],
    "tensor": tf.constant,
    "variable": lambda array: VariableValue(tf.constant(array)),
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
