"""Compiled calls that draw validation batches themselves, some at a time: see `SnapshotEvaluator`.

A call that is given a single batch costs some tenths of a millisecond, which is the time of a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from overlap_train._data.streamed_batches import BatchStream

# Between two calls a worker can be told that its validation has been given up.
_MOST_AT_ONCE = 64


def drawn_in_one_call(
    run: Callable[[Any], list[tf.Tensor]],
    iterator: Any,
    most: tf.Tensor,
    start: list[tf.Tensor],
    shapes: list[tf.TensorShape],
) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Return what `run` makes of the last of up to `most` batches, their number, and if there may be more.

    Called while tracing. Without a batch that is `start`.
    """

    def body(count: tf.Tensor, _: tf.Tensor, logs: list[tf.Tensor]) -> tuple[Any, ...]:
        batch = iterator.get_next_as_optional()
        after: tuple[Any, ...] = tf.cond(
            batch.has_value(),
            lambda: (count + 1, tf.constant(True), run(batch.get_value())),
            lambda: (count, tf.constant(False), logs),
        )
        return after

    count, more, logs = tf.while_loop(
        lambda count, more, _: (count < most) & more,
        body,
        (tf.constant(0, tf.int64), tf.constant(True), start),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), shapes),
        parallel_iterations=1,
    )
    return logs, count, more


def draw_all(functions: Any, variables: Sequence[tf.Tensor], stream: BatchStream) -> tuple[Any, Any, int]:
    """Draw a worker's share of a pass; return the metrics' state, the last logs and the number of batches.

    `functions` are `EvaluationFunctions`. On a worker, side by side with others.
    """
    state, logs, count = functions.start(variables), None, 0

    def draw(iterator: Any, most: int) -> tuple[int, bool]:
        nonlocal state, logs, count
        limit = tf.constant(most, tf.int64)
        state, last_logs, batches, more = functions.some(variables, state, iterator, limit)
        logs = last_logs if int(batches) else logs
        count += int(batches)
        return int(batches), bool(more)

    while stream.draw_some(draw, _MOST_AT_ONCE):
        pass
    return state, logs, count
