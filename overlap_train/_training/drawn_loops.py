"""Loops that draw their batches: from an iterator in one compiled call, or one by one in Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
from overlap_train._data.iterators import drawn_from, next_batch, step_through
from overlap_train._inspection.graph import iterator_over_nothing
from overlap_train._training.loops import SCALAR, Loop, StepsDone
from overlap_train._training.step import Batch, Logs, Step, require_logs
from overlap_train._training.strategy import Replicas


class IteratorLoop(Loop):
    """Batches of a `tf.data` iterator, drawn inside the loop until the count or the data ends."""

    name = "iterator"

    def __init__(self, step: Step) -> None:
        self._step = step
        self._many: Callable[..., Any] | None = None

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        if self._many is None:
            self._many = self._trace(cursor.current_pass)
        count, more, finite, logs = self._many(cursor.current_pass, tf.constant(max_steps, tf.int64))
        steps, exhausted = int(count), not bool(more)
        cursor.advance(steps)
        if exhausted:
            cursor.exhausted()
            self._step.find_no_batch()
        last = self._step.logs.packed(logs) if steps else {}
        return StepsDone(steps, exhausted, not bool(finite), last)

    def _draw(self, iterator: Any) -> tuple[tf.Tensor, Callable[[], Batch]]:
        """Return whether there is another batch, and what gets it."""
        return drawn_from(iterator)

    def on_nothing(self, feed: Feed) -> Callable[[], object] | None:
        iterator = iterator_over_nothing(feed.element_spec)
        if iterator is None:
            return None
        if self._many is None:
            self._many = self._trace(iterator)
        return functools.partial(self._many, iterator, tf.constant(0, tf.int64))

    def _trace(self, iterator: Any) -> Callable[..., Any]:
        many = tf.function(self._run_many, autograph=False)
        concrete: Callable[..., Any] = many.get_concrete_function(iterator, tf.TensorSpec([], tf.int64))
        return concrete

    def _run_many(self, iterator: Any, count: tf.Tensor) -> tuple[Any, ...]:
        carried = self._step.logs
        steps, more, (finite, logs) = step_through(
            lambda: self._draw(iterator),
            lambda batch, _: self._step.run_and_check(batch),
            count,
            (tf.constant(True), carried.empty()),
            (SCALAR, carried.shapes),
            goes_on=lambda finite_and_logs: finite_and_logs[0],
        )
        return steps, more, finite, logs


class HostsLoop(IteratorLoop):
    """Batches of each host's own iterator, until all of them have ended."""

    def __init__(self, step: Step, replicas: Replicas, element_spec: Any) -> None:
        super().__init__(step)
        self._replicas = replicas
        self._spec = element_spec

    def _draw(self, iterator: Any) -> tuple[tf.Tensor, Callable[[], Batch]]:
        (has_rows, batch), strategy = drawn_from(iterator), self._replicas.strategy

        def count() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(has_rows, tf.int32))

        counts = strategy.run(tf.autograph.experimental.do_not_convert(count))
        more = strategy.experimental_local_results(counts)[0] > 0
        return more, lambda: tf.cond(has_rows, batch, self._no_rows)

    def _no_rows(self) -> Batch:
        def none(spec: tf.TensorSpec) -> tf.Tensor:
            return tf.zeros([0, *(n or 1 for n in spec.shape[1:])], spec.dtype)

        return tf.nest.map_structure(none, self._spec)


class EagerLoop(Loop):
    """One Python call for each operation, as `run_eagerly` asks for: slow, and open to a debugger."""

    name = description = "eager"

    def __init__(self, step: Step) -> None:
        self._step = step

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        logs: Logs = {}
        for steps in range(max_steps):
            batch = self._next_batch(cursor)
            if batch is None:
                cursor.exhausted()
                return StepsDone(steps, exhausted=True, logs=logs)
            logs = self._step.run(batch)
            require_logs("train_step", logs)
            cursor.advance(1)
            if self._step.halts and "loss" in logs and not np.all(np.isfinite(logs["loss"])):
                return StepsDone(steps + 1, halted=True, logs=logs)
        return StepsDone(max_steps, logs=logs)

    def _next_batch(self, cursor: Cursor) -> Batch | None:
        if not isinstance(cursor.feed, ArrayFeed):
            return next_batch(cursor.current_pass)
        return cursor.feed.batch(cursor.current_pass, tf.constant(cursor.seen, tf.int64))
