"""Whether the Python that makes the batches of the training and of the validation shares a state.

Whoever comes first gets the first number of a random generator, and sees the counter that has not been raised
yet. Under Keras the training of an epoch, its validation and the next epoch come in this order. What both can
get hold of is often only data, which nobody changes. So it is looked at while the first epoch is trained and
its validation made, one after the other.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import calls_python, python_functions
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.origins import Origin, module_of, origin_of
from overlap_train._inspection.reach import named, reached
from overlap_train._inspection.states import (
    EVERYBODYS,
    GENERATORS,
    generators_of_library,
    is_apart,
    is_stream,
    keeps_state,
    state_of,
)
from overlap_train._inspection.writes import may_write
from overlap_train._support.reasons import Reason

__all__ = ["TOO_MUCH", "SharedState", "python_in"]

TOO_MUCH = Reason.of(
    "data-shared",
    "the Python of the data, or a callback, can get hold of more objects than are looked through",
)
# What is larger is taken to be data.
_MOST_OBJECTS = 2_000


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
        self.reason: Reason | None = None
        sources = [source for data in sets.values() for source in python_in(data)]
        self.open = bool(sources) and feed.runs_python
        self._generators: list[Any] = []
        self._others: list[Any] = []
        if self.open:
            try:
                self._compare(list(feed.python_sources), sources)
            except Unclear:
                self.reason = TOO_MUCH
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
        first, second = reached(training, object), reached(validation, object)
        own = {id(each) for each in first}
        common = [each for each in second if id(each) in own and not is_apart(each)]
        streams = [each for each in common if is_stream(each)]
        if streams:
            cause = "the Python of the training and of the validation data can both draw from one"
            self.reason = Reason.of("data-shared", f"{cause} {type(streams[0]).__name__}")
        (names, packages), (others, other_packages) = _named_in(first), _named_in(second)
        self._generators = [each for each in common if isinstance(each, GENERATORS)]
        for package in packages & other_packages:
            self._generators += generators_of_library(package)
        within = {id(each) for each in reached(self._generators, object)}
        self._others = [each for each in common if id(each) not in within and keeps_state(each)]
        del self._others[_MOST_OBJECTS:]
        self._others += [os.environ, *(names[each] for each in names.keys() & others.keys())]
        if self.reason is None and self._is_written(may_write(first) + may_write(second)):
            cause = "the Python of the training or of the validation data may change something that both use"
            self.reason = Reason.of("data-shared", cause)
        self._generators += [*EVERYBODYS, *([sys.modules["torch"]] if "torch" in sys.modules else [])]

    def _is_written(self, written: Iterable[Any]) -> bool:
        """Whether something of what may be written is what both can get hold of."""
        known = {id(each) for each in self._others if not isinstance(each, tuple)}
        names = {(id(each[0]), each[1]) for each in self._others if isinstance(each, tuple)}
        return any(
            (id(each[0]), each[1]) in names if isinstance(each, tuple) else id(each) in known
            for each in written
        )

    def _states(self, things: Iterable[Any]) -> list[str]:
        return [repr(state_of(thing)) for thing in things]


def _named_in(things: Sequence[Any]) -> tuple[dict[Any, Any], set[str]]:
    """Returns the names in the functions among some things, and the installed packages among all of these."""
    names = named(each for each in things if isinstance(each, types.FunctionType))
    values = [*things, *(space.get(name) for space, name in names.values())]
    written = {id(kind): kind for kind in map(_written, values)}.values()
    library = [kind for kind in written if origin_of(kind) is Origin.LIBRARY]
    return names, {module_of(kind).partition(".")[0] for kind in library} - {"numpy"}


def _written(value: Any) -> Any:
    """Returns what says in which package a value was written: itself, or the class of an object."""
    return value if isinstance(value, (type, types.FunctionType, types.ModuleType)) else type(value)


def python_in(data: Any) -> list[Any]:
    """Returns what of validation data, as the user gave it, is Python that makes batches."""
    if isinstance(data, tuple) and len(data) == 1:
        (data,) = data
    if isinstance(data, tf.data.Dataset):
        return python_functions(data) if calls_python(data) else []
    arrays = (np.ndarray, tf.Tensor, tf.RaggedTensor, tf.SparseTensor, list, tuple, dict, type(None))
    given = isinstance(data, arrays) or hasattr(data, "__array__") or hasattr(data, "iloc")
    return [] if given else [data]
