"""Iterators of batches: what comes next, and how one ends that still draws."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_END_S = 2.0


def next_batch(iterator: Iterator[Any]) -> Any | None:
    """Returns the next batch, or None when there is no more.

    TensorFlow never frees some 750 bytes of each error that an eager operation raises. The end of an iterator
    is such an error, so it is asked for instead.
    """
    if not isinstance(iterator, tf.data.Iterator):
        return next(iterator, None)
    batch = iterator.get_next_as_optional()
    return batch.get_value() if batch.has_value() else None


def end_iterators(iterators: list[Any]) -> None:
    """Empties a list of the last references to iterators that nothing draws from any more.

    An iterator ends only when the batch that it prefetches is there. The user's Python may never return that,
    so a thread waits for it, and the caller only for a moment. Otherwise the garbage collector would wait, at
    any time and on any thread.
    """
    if not any(each is not None for each in iterators):
        return
    thread = threading.Thread(target=iterators.clear, name="iterators-end", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # can't start new thread
        iterators.clear()
    else:
        thread.join(_END_S)
