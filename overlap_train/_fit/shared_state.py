"""Whether the Python that makes the batches of the training and of the validation shares a state.

Whoever comes first gets the first number of a random generator, and sees the counter that has not been raised
yet. Under Keras the training of an epoch, its validation and the next epoch come in this order. What both can
get hold of is often only data, which nobody changes. So it is looked at while the first epoch is trained and
its validation made, one after the other.
"""

from __future__ import annotations

import collections
import io
import random
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._callbacks.facts import look_up, variables_of
from overlap_train._callbacks.origins import Origin, is_simple, origin_of
from overlap_train._callbacks.reach import reached
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import calls_python, python_functions
from overlap_train._keras.copies import eager_random_state

__all__ = ["SharedState", "python_in"]

_GENERATORS = (
    random.Random,
    np.random.BitGenerator,
    np.random.Generator,
    np.random.RandomState,
    np.random.SeedSequence,
    tf.random.Generator,
    keras.random.SeedGenerator,
)
_CONTAINERS = (dict, list, set, collections.deque)
# What is larger is taken to be data.
_MOST_OBJECTS, _MOST_ITEMS, _MOST_BYTES = 2_000, 1_000, 1 << 16
_STANDARD_STREAMS = (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


class SharedState:
    """Watches what the Python of the training and of the validation data share. On the training thread.

    Attributes:
        open: whether it is not yet known if either changes it.
        reason: why the validation has to be waited for, as is known without looking; or None.
    """

    def __init__(self, feed: Feed, sets: Mapping[str, Any]) -> None:
        """Looks at what there is before the first epoch.

        Args:
            feed: the training data.
            sets: the validation sets as the user gave them, by name.
        """
        self.reason: str | None = None
        sources = [source for data in sets.values() for source in python_in(data)]
        self.open = bool(sources) and feed.runs_python
        self._generators: list[Any] = []
        self._others: list[Any] = []
        if self.open:
            self._compare(list(feed.python_sources), sources)
        self._at_first = self._states(self._others)
        self._before: list[str] | None = None

    def begin(self) -> None:
        """Says that the first validation is about to begin, beside which nothing is trained."""
        if self.open and self._before is None:
            self._before = self._states(self._generators)

    def end(self) -> bool:
        """Says that it has ended; returns whether anything has been drawn or changed."""
        if not self.open or self._before is None:
            return False
        self.open = False
        drawn = self._states(self._generators) != self._before
        changed = self._states(self._others) != self._at_first
        self._generators, self._others = [], []
        return drawn or changed

    def _compare(self, training: list[Any], validation: list[Any]) -> None:
        """Finds what code of both can get hold of."""
        own = {id(each) for each in reached(training, object)}
        common = [each for each in reached(validation, object) if id(each) in own and not _is_apart(each)]
        streams = [each for each in common if _is_stream(each)]
        if streams:
            self.reason = (
                "the Python of the training and of the validation data can both draw from one "
                f"{type(streams[0]).__name__}, in turn"
            )
        self._generators = [each for each in common if isinstance(each, _GENERATORS)]
        within = {id(each) for each in reached(self._generators, object)}
        kinds = (*_CONTAINERS, tf.Variable, keras.Variable, np.ndarray, types.CellType)
        self._others = [
            each
            for each in common
            if id(each) not in within and (isinstance(each, kinds) or _has_variables(each))
        ][:_MOST_OBJECTS]
        self._generators += [random, np.random, tf.random]

    def _states(self, things: Iterable[Any]) -> list[str]:
        return [repr(_state_of(thing)) for thing in things]


def python_in(data: Any) -> list[Any]:
    """Returns what of validation data, as the user gave it, is Python that makes batches."""
    if isinstance(data, tuple) and len(data) == 1:
        (data,) = data
    if isinstance(data, tf.data.Dataset):
        return python_functions(data) if calls_python(data) else []
    arrays = (np.ndarray, tf.Tensor, tf.RaggedTensor, tf.SparseTensor, list, tuple, dict, type(None))
    given = isinstance(data, arrays) or hasattr(data, "__array__") or hasattr(data, "iloc")
    return [] if given else [data]


def _is_stream(thing: Any) -> bool:
    """Whether something gives what it holds once, to whoever asks first."""
    return hasattr(type(thing), "__next__") or isinstance(thing, io.IOBase)


def _is_apart(thing: Any) -> bool:
    """Whether something of Python's own has nothing to do with data, such as a logger or a lock."""
    if any(thing is stream for stream in _STANDARD_STREAMS):
        return True
    kept = (*_CONTAINERS, *_GENERATORS, tuple, types.CellType, type)
    if isinstance(thing, kept) or _is_stream(thing):
        return False
    return isinstance(thing, types.ModuleType) or (
        origin_of(type(thing)) is Origin.STANDARD and not isinstance(thing, types.FunctionType)
    )


def _has_variables(thing: Any) -> bool:
    """Whether something has attributes that code may set: an object, a class of the user's, a function."""
    return bool(variables_of(thing)) if not isinstance(thing, type) else origin_of(thing) is Origin.USER


def _state_of(thing: Any) -> Any:
    if isinstance(thing, (*_GENERATORS, types.ModuleType)):
        return _state_of_generator(thing)
    if isinstance(thing, (tf.Variable, keras.Variable, np.ndarray)):
        small = np.prod(thing.shape, dtype=np.int64) <= _MOST_BYTES and thing.dtype != object
        return np.asarray(thing).tobytes() if small else None
    if isinstance(thing, types.CellType):
        return _brief(look_up(thing, ""))
    if isinstance(thing, dict):
        return len(thing), [(_brief(key), _brief(value)) for key, value in _some(thing.items())]
    if isinstance(thing, _CONTAINERS):
        return len(thing), [_brief(each) for each in _some(thing)]
    return [(name, _brief(value)) for name, value in _some(variables_of(thing).items())]


def _state_of_generator(generator: Any) -> Any:
    if generator is tf.random:
        return eager_random_state()
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


def _some(things: Iterable[Any]) -> list[Any]:
    found = list(things)
    return [*found[: _MOST_ITEMS // 2], *found[-_MOST_ITEMS // 2 :]]


def _brief(value: Any) -> Any:
    """Returns what tells a value from another: simple ones by what they are, objects by which they are."""
    return value if is_simple(value) else id(value)
