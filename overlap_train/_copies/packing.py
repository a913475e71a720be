"""Kept states as the named arrays and the JSON that a checkpoint holds, and back.

In the JSON, None, bool, int, float, str and lists stand for themselves. All else is a dict of one entry that
says what it is: `{"tuple": […]}`, `{"dict": [[key, value], …]}`, or `{"array": name}`. Integers of more
digits than JSON takes are written in base 16, and long lists of numbers as arrays. What several hold is
written once, as `{"shared": [number, value]}`, and is `{"again": number}` from then on.
"""

from __future__ import annotations

import array
import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._copies.generators import GeneratorValue
from overlap_train._copies.kept import KeptState
from overlap_train._copies.making import HOLDERS, MADE_OF_ARRAY, made, written
from overlap_train._copies.objects import ObjectValue
from overlap_train._copies.standard import parts_of
from overlap_train._copies.values import DEEPEST, VariableValue, is_shareable
from overlap_train._support.printing import told
from overlap_train.errors import CheckpointCorruptError

__all__ = ["pack", "unpack"]

Arrays = dict[str, npt.NDArray[Any]]

# What is nested deeper would exhaust the stack when it is put back. An object that is shared, with the pairs
# of its attributes, counts six.
_DEEPEST = 6 * DEEPEST + 2
# Python's text of longer integers may be limited to 640 digits, and is by default to 4300.
_LONGEST_INT_BITS = 2000
# A list of more numbers is an array: the losses of a million batches would be most of the JSON.
_SHORT_LIST = 256
_COMPARED = frozenset((int, str, bytes))


def pack(
    states: Iterable[KeptState],
    prefix: str = "callbacks",
    *,
    sharing: bool = True,
    sorts_sets: bool = False,
) -> tuple[Arrays, list[Any]]:
    """Splits states into arrays and JSON.

    Args:
        states: as captured.
        prefix: of the arrays' names, `prefix/position/attribute/number`.
        sharing: whether it counts that two names hold the same.
        sorts_sets: whether equal sets come to the same, whose members may come in another order.

    Returns:
        The arrays, which share memory with the states, and a JSON list, to be handed to `unpack`.
    """
    arrays: Arrays = {}
    states = list(states)
    shared = _held_twice([state.values for state in states]) if sharing else frozenset()
    packer = _Packer(arrays, shared, sorts_sets)
    described = []
    for position, state in enumerate(states):
        values = {
            name: packer.packed(value, f"{prefix}/{position}/{name}") for name, value in state.values.items()
        }
        names = {"left_out": list(state.left_out), "lost": list(state.lost), "sharing": sharing}
        described.append({"kind": state.kind, "values": values, **names})
    return arrays, described


def unpack(
    arrays: Mapping[str, npt.NDArray[Any]], described: Any, *, sharing: bool = True
) -> tuple[KeptState, ...]:
    """Puts states together again from what `pack` made.

    Args:
        arrays: those of `pack`, among others.
        described: the JSON list of `pack`.
        sharing: whether two names may hold the same. Who reads such a state has to look at nothing twice, or
            a small file would keep it busy for ever.

    Raises:
        CheckpointCorruptError: the two do not fit together.
    """
    unpacker = _Unpacker(dict(arrays), {} if sharing else None)
    try:
        return tuple(_state(entry, unpacker) for entry in described)
    except _UNFIT as error:
        raise CheckpointCorruptError(
            f"A state in it is invalid ({told(error):.160}). Take an older checkpoint or start afresh."
        ) from error


# What Python, NumPy and TensorFlow raise for values of the wrong type, range, size or depth.
_UNFIT = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError),
    *(OSError, tf.errors.OpError),
)


def _state(entry: Any, unpacker: _Unpacker) -> KeptState:
    kind, left_out = entry["kind"], entry["left_out"]
    if not isinstance(kind, str) or not isinstance(left_out, list):
        raise TypeError(f"kind {kind!r:.80}, left_out {left_out!r:.80}")
    lost = entry.get("lost", left_out)  # which earlier releases did not tell apart
    if not isinstance(lost, list) or not all(isinstance(name, str) for name in [*left_out, *lost]):
        raise TypeError(f"left_out {left_out!r:.80}, lost {lost!r:.80}")
    sharing = entry.get("sharing") is True
    unpacker = unpacker if sharing else unpacker.apart()
    values = {name: unpacker.unpacked(value) for name, value in entry["values"].items()}
    return KeptState(kind, values, tuple(left_out), tuple(lost), sharing)


def _held_twice(value: Any) -> frozenset[int]:
    """Returns the `id` of each part that is held by more than one other, or more than once."""
    left, seen, twice = [value], set(), set()
    while left:
        value = left.pop()
        if is_shareable(value):
            if id(value) in seen:
                twice.add(id(value))
                continue
            seen.add(id(value))
        if isinstance(value, ObjectValue):
            left += [value.items, *value.attributes.values()]
        elif isinstance(value, Mapping):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            left += value
    return frozenset(twice)


def _sorted(items: Collection[Any]) -> list[Any]:
    """Returns the members of a set in an order of their own."""
    kinds = set(map(type, items))
    return sorted(items, key=None if len(kinds) == 1 and kinds <= _COMPARED else repr)


class _Packer:
    """Writes values as JSON, and puts their arrays aside."""

    def __init__(self, arrays: Arrays, shared: frozenset[int], sorts_sets: bool) -> None:
        self._arrays = arrays
        self._shared = shared
        self._sorts_sets = sorts_sets
        self._numbers: dict[int, int] = {}

    def packed(self, value: Any, name: str) -> Any:
        """Returns the JSON of a value, whose arrays are called after it."""
        if id(value) not in self._shared:
            return self._packed(value, name)
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        number = self._numbers[id(value)] = len(self._numbers)
        return {"shared": [number, self._packed(value, name)]}

    def _packed(self, value: Any, name: str) -> Any:
        # NumPy's scalars come first: np.float64 is a float too.
        if isinstance(value, np.generic):
            return {"scalar": self._stored(value, name)}
        if isinstance(value, int) and value.bit_length() > _LONGEST_INT_BITS:
            return {"int": hex(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, list):
            return self._listed(value, name)
        if isinstance(value, dict):
            pairs = value.items()
            return {"dict": [[self.packed(key, name), self.packed(item, name)] for key, item in pairs]}
        if isinstance(value, deque):
            return {"deque": [value.maxlen, self._listed([*value], name)]}
        if isinstance(value, (tuple, set, frozenset)):
            sorts = self._sorts_sets and not isinstance(value, tuple)
            return {type(value).__name__: self._listed(_sorted(value) if sorts else [*value], name)}
        if isinstance(value, np.ndarray):
            return {"array": self._stored(value, name)}
        if isinstance(value, VariableValue):
            return {"variable": self._stored(value.tensor.numpy(), name)}
        if tf.is_tensor(value):
            return {"tensor": self._stored(value.numpy(), name)}
        return self._packed_parts(value, name)

    def _listed(self, items: list[Any], name: str) -> Any:
        kinds = set(map(type, items)) if len(items) > _SHORT_LIST else set()
        if kinds == {str}:
            return items
        if kinds == {float}:
            return {"floats": self._stored(np.array(items, np.float64), name)}
        if kinds == {int}:
            with contextlib.suppress(OverflowError):
                return {"ints": self._stored(np.array(items, np.int64), name)}
        return [self.packed(item, name) for item in items]

    def _packed_parts(self, value: Any, name: str) -> Any:
        """Returns the JSON of what is made of parts of its own kind."""
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, GeneratorValue):
            return {"generator": [value.kind, self.packed(value.state, name)]}
        if isinstance(value, ObjectValue):
            parts = [self.packed(value.items, name), self._packed(dict(value.attributes), name)]
            return {"object": [value.kind, value.partial, *parts]}
        if isinstance(value, array.array):
            return {"numbers": [value.typecode, value.tolist()]}
        if isinstance(value, bytearray):
            return {"bytearray": value.hex()}
        kind, content = parts_of(value)
        return {kind: self.packed(content, name)}

    def _stored(self, content: Any, name: str) -> str:
        key = f"{name}/{len(self._arrays)}"
        self._arrays[key] = np.asarray(content)
        return key


class _Unpacker:
    """Makes values of their JSON.

    Args:
        left: the arrays; each belongs to one value, and is taken out.
        shared: what several hold, by number, and how deep it is in itself; None where nothing is shared.
    """

    def __init__(self, left: Arrays, shared: dict[int, tuple[Any, int]] | None) -> None:
        self._left = left
        self._shared = shared
        self._deepest = 0

    def unpacked(self, value: Any, depth: int = 0) -> Any:
        """Returns the value of its JSON, which stands so deep in others."""
        self._reach(depth)
        if isinstance(value, list):
            return [self.unpacked(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind in ("shared", "again"):
            return self._again(content, depth) if kind == "again" else self._first(content, depth)
        if kind == "deque":
            maxlen, items = content
            return deque(written(self.unpacked(items, depth + 1)), maxlen)
        if kind in MADE_OF_ARRAY:
            return MADE_OF_ARRAY[kind](self._left.pop(content))
        # What makes something else of its parts would look at each as often as it is held.
        unpacker = self if kind in HOLDERS else self.apart()
        return made(kind, unpacker.unpacked(content, depth + 1))

    def apart(self) -> _Unpacker:
        """Returns one of the same arrays for values of which nothing is shared."""
        return _Unpacker(self._left, None)

    def _reach(self, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError(f"a value that is nested more than {_DEEPEST} deep")
        self._deepest = max(self._deepest, depth)

    def _first(self, content: Any, depth: int) -> Any:
        number, value = content
        if self._shared is None or number in self._shared:
            raise ValueError(f"a value that is shared as {number!r:.80}")
        outside, self._deepest = self._deepest, depth
        done = self.unpacked(value, depth + 1)
        if not is_shareable(done):
            raise TypeError(f"a {type(done).__name__} that is shared")
        self._shared[number] = done, self._deepest - depth
        self._deepest = max(self._deepest, outside)
        return done

    def _again(self, number: Any, depth: int) -> Any:
        if self._shared is None:
            raise ValueError(f"a value that is shared as {number!r:.80}")
        done, height = self._shared[number]
        self._reach(depth + height)
        return done
