"""The states of Python objects: which objects have one, and what tells one state from another."""

from __future__ import annotations

import array
import collections
import ctypes
import io
import os
import random
import sys
import types
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._inspection.lookup import look_up, variables_of
from overlap_train._inspection.origins import Origin, is_simple, module_of, origin_of
from overlap_train._keras.copies import eager_random_state

__all__ = [
    "BUFFERS",
    "CONTAINERS",
    "EVERYBODYS",
    "GENERATORS",
    "generators_of_library",
    "is_apart",
    "is_stream",
    "keeps_state",
    "some",
    "state_of",
]

GENERATORS = (
    random.Random,
    np.random.BitGenerator,
    np.random.Generator,
    np.random.RandomState,
    np.random.SeedSequence,
    tf.random.Generator,
    keras.random.SeedGenerator,
)
"""Random generators, each of which anybody may hold."""
EVERYBODYS = (random, np.random, tf.random)
"""Modules that have a random generator for everybody."""
CONTAINERS = (dict, list, set, collections.deque)
BUFFERS = (
    bytearray,
    array.array,
    memoryview,
    ctypes.Array,
    ctypes.Structure,
    ctypes._SimpleCData,
)
_VARIABLES = (tf.Variable, keras.Variable)
# Of what is larger only a part is looked at.
_MOST_ITEMS, _MOST_BYTES, _PARTS = 1_000, 1 << 24, 4_096
_STANDARD_STREAMS = (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


def is_stream(thing: Any) -> bool:
    """Whether something gives what it holds once, to whoever asks first."""
    return hasattr(type(thing), "__next__") or (isinstance(thing, io.IOBase))


def is_apart(thing: Any) -> bool:
    """Whether something of Python's own has nothing to do with data, such as a logger or a lock."""
    if any(thing is stream for stream in _STANDARD_STREAMS):
        return True
    kept = (*CONTAINERS, *GENERATORS, *BUFFERS, tuple, types.CellType, type)
    if isinstance(thing, kept) or is_stream(thing):
        return False
    return isinstance(thing, types.ModuleType) or (
        origin_of(type(thing)) is Origin.STANDARD and not isinstance(thing, types.FunctionType)
    )


def keeps_state(thing: Any) -> bool:
    """Whether something can be changed: a container, memory, or whatever has attributes that code may set."""
    if isinstance(thing, type):
        return origin_of(thing) is Origin.USER
    kinds = (*CONTAINERS, *BUFFERS, *_VARIABLES, np.ndarray, types.CellType)
    return isinstance(thing, kinds) or bool(variables_of(thing))


def state_of(thing: Any) -> Any:
    """Returns what tells the state of a thing from another: of large ones a part, of objects which they are.

    Args:
        thing: a generator, something that keeps a state, a module of `EVERYBODYS`, `os.environ`, or a name as
            a pair of a namespace and a text.
    """
    if isinstance(thing, (*GENERATORS, types.ModuleType)):
        return _state_of_generator(thing)
    if isinstance(thing, (*_VARIABLES, np.ndarray, *BUFFERS)):
        return _digest_of(thing)
    if isinstance(thing, types.CellType):
        return _brief(look_up(thing, ""))
    if isinstance(thing, tuple):
        return _brief(thing[0].get(thing[1]))
    if thing is os.environ:
        return sorted(thing.items())
    if isinstance(thing, dict):
        return len(thing), [(_brief(key), _brief(value)) for key, value in some(thing.items())]
    if isinstance(thing, CONTAINERS):
        return len(thing), [_brief(each) for each in some(thing)]
    return [(name, _brief(value)) for name, value in some(variables_of(thing).items())]


def generators_of_library(package: str) -> Iterator[Any]:
    """Yields the random generators that the modules of an installed package hold for whoever calls it."""
    modules = [m for name, m in sys.modules.copy().items() if name.partition(".")[0] == package]
    for value in (value for module in modules for value in list(vars(module).values())):
        if isinstance(value, GENERATORS):
            yield value
        elif not isinstance(value, (type, types.ModuleType)) and module_of(type(value)).startswith(package):
            yield from (each for each in variables_of(value).values() if isinstance(each, GENERATORS))


def _state_of_generator(generator: Any) -> Any:
    if generator is tf.random:
        return eager_random_state()
    if isinstance(generator, types.ModuleType) and generator.__name__ == "torch":
        return zlib.crc32(generator.get_rng_state().numpy().tobytes())
    if isinstance(generator, (tf.random.Generator, keras.random.SeedGenerator)):
        return np.asarray(generator.state).tolist()
    if isinstance(generator, np.random.SeedSequence):
        return generator.n_children_spawned
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    state = generator.getstate() if hasattr(generator, "getstate") else generator.get_state()
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in state]


def _digest_of(thing: Any) -> Any:
    """Returns a checksum of memory; None for memory that its holders cannot write to, or that is closed."""
    try:
        values = np.asarray(thing) if isinstance(thing, _VARIABLES) else _array_on(thing)
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


def _array_on(thing: Any) -> np.ndarray[Any, Any]:
    return thing if isinstance(thing, np.ndarray) else np.frombuffer(thing, np.uint8)


def some(things: Iterable[Any]) -> list[Any]:
    found = list(things)
    return found if len(found) <= _MOST_ITEMS else [*found[: _MOST_ITEMS // 2], *found[-_MOST_ITEMS // 2 :]]


def _brief(value: Any) -> Any:
    """Returns what tells a value from another: simple ones by what they are, objects by which they are."""
    return value if is_simple(value) else id(value)
