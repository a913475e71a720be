"""Whether the training, the validation and callbacks draw from the same source of chance.

A shuffle of `tf.data` draws a new order whenever an iterator is made, and a random generator of Python's
whenever it is asked. Who draws first gets the first number. Under Keras the training of an epoch, its
validation, its callbacks and the next epoch draw in this order; a training that runs ahead would draw before
the validation and the callbacks.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._callbacks.hooks import is_declared_safe
from overlap_train._callbacks.reach import reached
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import calls_python, python_functions, shuffles_of

__all__ = ["PythonDraws", "draw_in_turn"]

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)


def draw_in_turn(
    feed: Feed, sets: Iterable[Any], callbacks: Sequence[keras.callbacks.Callback]
) -> str | None:
    """Returns which shuffle others draw from as well, so that a validation has to be waited for, or None.

    Args:
        feed: the training data.
        sets: the validation sets as the user gave them.
        callbacks: the user's.
    """
    validated: frozenset[int] = frozenset().union(*map(shuffles_of, sets))
    if feed.shuffles & validated:
        return (
            "the training and the validation data come from one shuffle, which draws a new order for each "
            "pass over either; shuffle(…, reshuffle_each_iteration=False), or a shuffle of their own for "
            "each, would overlap"
        )
    shuffles = feed.shuffles | validated
    for callback in callbacks if shuffles else ():
        if is_declared_safe(callback):
            continue
        datasets = reached([callback], tf.data.Dataset)
        if any(shuffles_of(dataset) & shuffles for dataset in datasets):
            name = type(callback).__name__
            return (
                f"{name} may look at data that the fit draws from, too, and whose shuffle draws a new order "
                f"for each pass; {name}.overlap_safe = True would overlap if it does not, and "
                'ValidationPolicy(on_change="continue") if the order does not matter'
            )
    return None


class PythonDraws:
    """Watches, while one validation runs alone, whether its Python draws from what the training's may, too.

    Watched are the global generators of `random` and NumPy, and those that the code or the objects of both
    can get hold of. Belongs to the training thread.
    """

    def __init__(self, feed: Feed, sets: Mapping[str, Any]) -> None:
        """Of one fit.

        Args:
            feed: the training data.
            sets: the validation sets as the user gave them, by name.
        """
        self._sources = [data for data in sets.values() if _runs_python(data)]
        self._feed = feed
        self._before: list[Any] | None = None
        self._generators: list[Any] | None = None
        self.open = bool(self._sources) and feed.runs_python

    def begin(self) -> None:
        """Says that the first validation is about to begin, beside which nothing is trained."""
        if self.open and self._before is None:
            own = {id(each) for each in reached(self._feed.python_sources, *_GENERATORS)}
            sources = [source for data in self._sources for source in _python_in(data)]
            common = [each for each in reached(sources, *_GENERATORS) if id(each) in own]
            self._generators = [random, np.random, *common]
            self._before = self._states()

    def end(self) -> bool:
        """Says that it has ended; returns whether anything has been drawn."""
        if not self.open or self._before is None:
            return False
        self.open = False
        return self._states() != self._before

    def _states(self) -> list[str]:
        return [repr(_state_of(each)) for each in self._generators or ()]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    state = generator.getstate() if hasattr(generator, "getstate") else generator.get_state()
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in state]


def _python_in(data: Any) -> list[Any]:
    return python_functions(data) if isinstance(data, tf.data.Dataset) else [data]


def _runs_python(data: Any) -> bool:
    """Whether the user's Python makes validation data."""
    if isinstance(data, tf.data.Dataset):
        return calls_python(data)
    arrays = (np.ndarray, tf.Tensor, tf.RaggedTensor, tf.SparseTensor, list, tuple, dict, type(None))
    return not isinstance(data, arrays) and not hasattr(data, "__array__") and not hasattr(data, "iloc")
