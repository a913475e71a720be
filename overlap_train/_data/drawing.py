"""How the next batch is drawn outside compiled code, and how an iterator ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

__all__ = ["all_batches", "end_iterators", "next_batch"]

_END_S = 2.0


def next_batch(iterator: Iterator[Any]) -> Any | None:
    """Returns the next batch, or None when there is no more.

    TensorFlow keeps three quarters of a kilobyte for good of each error that comes out of an eager operation.
    The end of an iterator is one, and is asked for here instead.
    """
    if not isinstance(iterator, tf.data.Iterator):
        return next(iterator, None)
    found = iterator.get_next_as_optional()
    return found.get_value() if found.has_value() else None


def all_batches(dataset: tf.data.Dataset) -> list[Any]:
    """Returns the batches of one pass."""
    iterator, batches = iter(dataset), []
    while (batch := next_batch(iterator)) is not None:
        batches.append(batch)
    return batches


def end_iterators(iterators: list[Any]) -> None:
    """Empties a list of the last references to iterators, as no batch is drawn from them any more.

    The end of an iterator waits for the batch that it fetches ahead. The user's Python may never return that,
    so a thread waits, and the caller only for a moment. Without this the garbage collector would wait, at any
    time and on any thread.
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
