"""Grain's datasets, wrapped so that they tell where they stand and begin there again.

Keras draws from a Grain dataset by an iterator for each pass, out of reach within a `tf.data` pipeline. So
Keras is given a dataset that hands out the iterators of the user's and keeps the newest: `get_state` of a
`MapDataset`'s is the index of the next element. Iterators belong to the thread that draws; they are asked
between two draws. Nothing here imports `grain` unless the user has.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from overlap_train._keras.names import is_grain_dataset

__all__ = ["told"]


def told(data: Any) -> Any:
    """Return a dataset of the same elements that tells its position, or None if data is not Grain's.

    The dataset has `newest`, its newest iterator, which has `count`, the number of elements that have been
    drawn, and `get_state`; and `begin_at(count, state)`, by which the next iterator begins there.
    """
    if "grain" not in sys.modules or not is_grain_dataset(data):
        return None
    return _classes()(data)


@functools.cache
def _classes() -> Any:
    """Make the class of such datasets, which inherits from Grain's, as Keras expects."""
    grain = sys.modules["grain"]

    class Told(grain.IterDataset):  # type: ignore[misc, name-defined]
        def __init__(self, data: Any) -> None:
            super().__init__()
            self._data, self._next = data, None
            self.newest: Any = None

        def begin_at(self, count: int, state: Any) -> Any:
            begun = iter(self._data)
            begun.set_state(state)
            self._next = _iterator_class()(begun, count)
            return self._next

        def __iter__(self) -> Any:
            begun, self._next = self._next, None
            self.newest = begun or _iterator_class()(iter(self._data), 0)
            return self.newest

        def __str__(self) -> str:
            return str(self._data)

    return Told


@functools.cache
def _iterator_class() -> Any:
    grain = sys.modules["grain"]

    class ToldIterator(grain.DatasetIterator):  # type: ignore[misc, name-defined]
        def __init__(self, elements: Any, count: int) -> None:
            super().__init__()
            self._elements, self.count = elements, count

        def __next__(self) -> Any:
            element = next(self._elements)
            self.count += 1
            return element

        def get_state(self) -> Any:
            return self._elements.get_state()

        def set_state(self, state: Any) -> None:
            self._elements.set_state(state)

        def close(self) -> None:
            super().close()
            if hasattr(self._elements, "close"):
                self._elements.close()

    return ToldIterator
