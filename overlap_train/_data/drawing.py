"""How the next batch is drawn outside compiled code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

__all__ = ["all_batches", "next_batch"]


def next_batch(iterator: Iterator[Any]) -> Any | None:
    """Returns the next batch, or None when there is no more.

    TensorFlow keeps three quarters of a kilobyte for good of each error that comes out of an eager operation.
    The end of an iterator is one, and is asked for here instead.

    Args:
        iterator: of a dataset, or any other.

    Raises:
        Exception: what making the batch raises.
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
