"""Iterators of batches: what comes next, in and outside compiled code, and how one ends that still draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any

import tensorflow as tf

from overlap_train._support.threads import in_background

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


def step_through(
    draw: Callable[[], tuple[tf.Tensor, Callable[[], Any]]],
    step: Callable[[Any, Any], Any],
    most: tf.Tensor,
    start: Any,
    shapes: Any,
    goes_on: Callable[[Any], tf.Tensor] = lambda carried: tf.constant(True),
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    """Calls `step` in a loop with up to `most` batches; returns their number and whether there may be more.

    The third value is what the last call has returned, of the structure of `start`, which stands for it
    before the first one; `step` is given a batch and the value before. The loop ends where that does not go
    on. `draw` returns whether there is another batch, and what gets it. Called while tracing.
    """

    def body(count: tf.Tensor, _: tf.Tensor, carried: Any) -> Any:
        has_batch, batch = draw()
        return tf.cond(
            has_batch,
            lambda: (count + 1, tf.constant(True), step(batch(), carried)),
            lambda: (count, tf.constant(False), carried),
        )

    count, more, carried = tf.while_loop(
        lambda count, more, carried: (count < most) & more & goes_on(carried),
        body,
        (tf.constant(0, tf.int64), tf.constant(True), start),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), shapes),
        parallel_iterations=1,
    )
    return count, more, carried


def drawn_from(iterator: Any) -> tuple[tf.Tensor, Callable[[], Any]]:
    """Returns whether an iterator has another batch, and what gets it. Called while tracing."""
    batch = iterator.get_next_as_optional()
    return batch.has_value(), batch.get_value


def end_iterators(iterators: list[Any]) -> None:
    """Empties a list of the last references to iterators that nothing draws from any more.

    An iterator ends only when the batch that it prefetches is there. The user's Python may never return that,
    so a thread waits for it, and the caller only for a moment. Otherwise the garbage collector would wait, at
    any time and on any thread.
    """
    if any(each is not None for each in iterators):
        wait([in_background(iterators.clear, "iterators-end", daemon=True)], timeout=_END_S)
