"""What tells one state of a container, or of memory, from another."""

from __future__ import annotations

import array
import collections
import ctypes
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from overlap_train._inspection.origins import is_simple

__all__ = ["BUFFERS", "CONTAINERS", "some", "state_of"]

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
_MOST_ITEMS, _MOST_BYTES, _PARTS = 1_000, 1 << 24, 4_096


def state_of(thing: Any) -> Any:
    """Returns what tells the state of a container, an array or memory from another; of large ones a part."""
    if isinstance(thing, (np.ndarray, *BUFFERS)):
        return _digest_of(thing)
    items = thing.items() if isinstance(thing, dict) else thing
    brief = [tuple(map(_brief, each)) if isinstance(thing, dict) else _brief(each) for each in some(items)]
    return len(thing), brief


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
        step = values.size // _PARTS
        values = np.concatenate([values.flat[:_PARTS], values.flat[-_PARTS:], values.flat[::step]])
    return values.shape, zlib.crc32(values.tobytes())


def _brief(value: Any) -> Any:
    """Returns what tells a value from another: simple ones by what they are, objects by which they are."""
    return value if is_simple(value) else id(value)
