"""The compiled epoch: loops that make many training steps in one call, and how many of them a call makes.

A loop is driven by the training thread and touches the model's variables only inside its calls; between two
calls the model is in a state in which a snapshot can be taken.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.batches import next_batch
from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
from overlap_train._inspection.graph import iterator_over_nothing
from overlap_train._support.closing import Closing
from overlap_train._support.threads import leaves_nothing
from overlap_train._training.step import Batch, Logs, Step, require_logs
from overlap_train._training.strategy import Replicas

__all__ = [
    "ArrayLoop",
    "CompiledArrayLoop",
    "EagerLoop",
    "HostsLoop",
    "IteratorLoop",
    "Loop",
    "Pace",
    "StepsDone",
    "WarmUp",
    "make_loop",
]


_CALL_S = 0.25


class Pace:
    """Learns the time of a step and sizes the calls after it, or gives them a fixed number of steps.

    Calls of a quarter of a second cost nothing in Python and still let bars, interrupts and deliveries come
    in time. The first calls are short, because nothing is known yet and the first one of all includes
    tracing.
    """

    def __init__(self, steps_per_call: int | None = None) -> None:
        self._fixed = steps_per_call
        self._step_s: float | None = None
        self._calls = 0

    @property
    def step_s(self) -> float | None:
        """Seconds for a step, as last measured; None before the second call."""
        return self._step_s

    def steps(self) -> int:
        """Return how many steps the next call should make."""
        if self._fixed is not None:
            return self._fixed
        if self._step_s is None:
            return 1 if self._calls == 0 else 4
        return max(1, round(_CALL_S / self._step_s))

    def observe(self, steps: int, seconds: float) -> None:
        """Take in what a call of `steps` steps took."""
        self._calls += 1
        if self._calls == 1 or steps == 0:
            return
        latest = max(seconds / steps, 1e-9)
        # Within a factor of four at a time: one stalled call must not shrink the next ones to nothing.
        if self._step_s is not None:
            latest = min(max(latest, self._step_s / 4), self._step_s * 4)
        self._step_s = latest


@dataclass(frozen=True, slots=True)
class StepsDone:
    """What one call did."""

    steps: int
    exhausted: bool = False  # the data ended before the steps that were asked for
    halted: bool = False  # the loop ended itself because the loss was no longer finite
    logs: Logs | None = None  # of the last step, unless the model's metrics tell the same


class WarmUp:
    """Runs a compiled function on nothing, on a thread of its own.

    Optimising a graph and making its kernels takes TensorFlow as long as hundreds of steps, needs one core
    and leaves Python alone. What goes wrong is not reported: it comes again with the first true call. Where
    the system starts no more threads, that call prepares it.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._thread = threading.Thread(target=self._run, name="loop-warm-up", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # can't start new thread
            self._work = None

    def wait(self) -> None:
        """Wait for its end."""
        if self._thread.ident is not None:
            self._thread.join()

    @leaves_nothing
    def _run(self) -> None:
        work, self._work = self._work, None  # which holds the data
        with contextlib.suppress(Exception):
            assert work is not None
            work()


class Loop(Closing):
    """Makes training steps from the batches at a cursor.

    A compiled loop holds no data: it serves every feed of the same kind and specs.
    """

    name: str
    splits: int = 1  # parts of a batch that run at the same time
    plan: str = ""  # how the steps are computed, as far as it may round otherwise
    _is_warm: bool = False
    _warm_up: WarmUp | None = None

    @abc.abstractmethod
    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        """Make up to `max_steps` steps, all from the current pass, and advance the cursor."""

    def on_nothing(self, feed: Feed) -> Callable[[], object] | None:
        """Return what runs on no batch what `run` will run, from any thread; None if nothing does.

        TensorFlow prepares a function when it first runs. Belongs to the training thread, since it may trace.
        """
        return None

    def begin_warm_up(self, feed: Feed) -> None:
        """Begin to do so on another thread, once; `close` waits for it, and belongs before the first call."""
        work = None if self._is_warm else self.on_nothing(feed)
        self._is_warm = True
        if work is not None:
            self._warm_up = WarmUp(work)

    def close(self) -> None:
        """Wait for what has been begun. May be called more than once."""
        warm_up, self._warm_up = self._warm_up, None
        if warm_up is not None:
            warm_up.wait()

    def close_now(self) -> None:
        """Nothing: the warm-up ends by itself."""


class ArrayLoop(Loop):
    """Rows of in-memory tensors, gathered by the pass's order inside the loop.

    A batch has a static shape where Keras's would have one, which is if all batches are full: the losses
    of several outputs are averaged differently where the shape is known.
    """

    name = "in_memory"

    def __init__(self, feed: ArrayFeed, step: Step, *, compiled: bool = False) -> None:
        self._step = step
        self._many = self._trace(feed, compiled=compiled)

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        return self._call(cursor, max_steps)

    def on_nothing(self, feed: Feed) -> Callable[[], object]:
        assert isinstance(feed, ArrayFeed)
        zero, order = tf.constant(0, tf.int64), tf.zeros([feed.num_samples], tf.int64)
        return functools.partial(self._many, feed.tensors, order, zero, zero)

    def _trace(self, feed: ArrayFeed, *, compiled: bool) -> Callable[..., Any]:
        """Trace the loop; if XLA compiles it, for full batches only.

        The tensors are arguments, so that the same function serves other arrays of such rows, however many;
        XLA wants to know how many.
        """
        step = self._step

        def many(tensors: Any, order: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> tuple[Any, ...]:
            def body(index: tf.Tensor, *_: Any) -> tuple[Any, ...]:
                return (index + 1, *step.run_and_check(feed.batch(order, index, tensors, full=compiled)))

            done: tuple[Any, ...] = tf.while_loop(
                lambda index, finite, _: tf.logical_and(index < last, finite),
                body,
                (first, tf.constant(True), _empty_logs(step)),
                shape_invariants=(_SCALAR, _SCALAR, _log_shapes(step)),
                parallel_iterations=1,
            )
            return done

        rows = feed.num_samples if compiled else None
        specs = keras.tree.map_structure(lambda t: tf.TensorSpec([rows, *t.shape[1:]], t.dtype), feed.tensors)
        order, number = tf.TensorSpec([rows], tf.int64), tf.TensorSpec([], tf.int64)
        function = tf.function(many, autograph=False, jit_compile=compiled or None)
        concrete: Callable[..., Any] = function.get_concrete_function(specs, order, number, number)
        return concrete

    def _call(self, cursor: Cursor, steps: int) -> StepsDone:
        first, last = (tf.constant(n, tf.int64) for n in (cursor.seen, cursor.seen + steps))
        reached, finite, logs = self._many(_arrays(cursor).tensors, cursor.current_pass, first, last)
        steps = int(reached) - cursor.seen
        cursor.advance(steps)
        return StepsDone(steps, halted=not bool(finite), logs=_last_logs(self._step, steps, logs))


class CompiledArrayLoop(ArrayLoop):
    """The same with the loop itself compiled by XLA, which needs to know the size of a batch.

    All full batches of a pass go through the compiled loop, a smaller last one through an ordinary one with
    `last_step`, traced when it is first needed. Batches then have a static shape, so this loop is not for
    models whose losses Keras averages otherwise where it is unknown; see `ArrayLoop`.
    """

    def __init__(self, feed: ArrayFeed, step: Step, last_step: Step, *, asked: bool) -> None:
        super().__init__(feed, step, compiled=True)
        self._last_step = last_step
        self._last: ArrayLoop | None = None
        self._asked = asked  # else all goes through the ordinary one where XLA refuses
        self._refused = self._has_run = False

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        feed = _arrays(cursor)
        full_batches = feed.num_samples // feed.batch_size
        left = min(max_steps, full_batches - cursor.seen)
        if left <= 0 or self._refused:
            return self._run_last(cursor, max_steps)
        try:
            done = self._call(cursor, left)
        except tf.errors.OpError:
            if self._has_run or self._asked:
                raise
            # XLA could not compile it, so no step was made; an error of the data comes again without XLA.
            self._refused = True
            return self._run_last(cursor, max_steps)
        self._has_run = True
        if done.halted or done.steps == max_steps:
            return done
        rest = self._run_last(cursor, max_steps - done.steps)
        return StepsDone(done.steps + rest.steps, halted=rest.halted, logs=rest.logs)

    def _run_last(self, cursor: Cursor, max_steps: int) -> StepsDone:
        if self._last is None:
            self._last = ArrayLoop(_arrays(cursor), self._last_step)
        return self._last.run(cursor, max_steps)


class IteratorLoop(Loop):
    """Batches of a `tf.data` iterator, drawn inside the loop until the count or the data ends."""

    name = "iterator"

    def __init__(self, step: Step) -> None:
        self._step = step
        self._many: Callable[..., Any] | None = None

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        if self._many is None:
            self._many = self._trace(cursor.current_pass)
        done, more, finite, logs = self._many(cursor.current_pass, tf.constant(max_steps, tf.int64))
        steps, exhausted = int(done), not bool(more)
        cursor.advance(steps)
        if exhausted:
            cursor.exhausted()
        return StepsDone(steps, exhausted, not bool(finite), _last_logs(self._step, steps, logs))

    def _draw(self, iterator: Any) -> tuple[tf.Tensor, Callable[[], Batch]]:
        """Return whether there is another batch, and what gets it."""
        batch = iterator.get_next_as_optional()
        return batch.has_value(), batch.get_value

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
        true, false = tf.constant(True), tf.constant(False)

        def body(index: tf.Tensor, _: tf.Tensor, finite: tf.Tensor, logs: Any) -> tuple[Any, ...]:
            more, batch = self._draw(iterator)

            def step() -> tuple[Any, ...]:
                return (index + 1, true, *self._step.run_and_check(batch()))

            drawn: tuple[Any, ...] = tf.cond(more, step, lambda: (index, false, finite, logs))
            return drawn

        done: tuple[Any, ...] = tf.while_loop(
            lambda index, more, finite, _: (index < count) & more & finite,
            body,
            (tf.constant(0, tf.int64), true, true, _empty_logs(self._step)),
            shape_invariants=(_SCALAR, _SCALAR, _SCALAR, _log_shapes(self._step)),
            parallel_iterations=1,
        )
        return done


class HostsLoop(IteratorLoop):
    """Batches of each host's own iterator, until all of them have ended."""

    def __init__(self, step: Step, replicas: Replicas, element_spec: Any) -> None:
        super().__init__(step)
        self._replicas = replicas
        self._spec = element_spec

    def _draw(self, iterator: Any) -> tuple[tf.Tensor, Callable[[], Batch]]:
        batch = iterator.get_next_as_optional()
        has_rows, strategy = batch.has_value(), self._replicas.strategy

        def count() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(has_rows, tf.int32))

        counted = strategy.run(tf.autograph.experimental.do_not_convert(count))
        more = strategy.experimental_local_results(counted)[0] > 0
        return more, lambda: tf.cond(has_rows, batch.get_value, self._no_rows)

    def _no_rows(self) -> Batch:
        def none(spec: tf.TensorSpec) -> tf.Tensor:
            return tf.zeros([0, *(n or 1 for n in spec.shape[1:])], spec.dtype)

        return tf.nest.map_structure(none, self._spec)


class EagerLoop(Loop):
    """One Python call for each operation, as `run_eagerly` asks for: slow, and open to a debugger."""

    name = "eager"

    def __init__(self, step: Step) -> None:
        self._step = step

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        logs: Logs | None = None
        for done in range(max_steps):
            batch = self._next_batch(cursor)
            if batch is None:
                cursor.exhausted()
                return StepsDone(done, exhausted=True, logs=logs)
            logs = self._step.run(batch)
            require_logs("train_step", logs)
            cursor.advance(1)
            if self._step.halts and "loss" in logs and not np.all(np.isfinite(logs["loss"])):
                return StepsDone(done + 1, halted=True, logs=logs)
        return StepsDone(max_steps, logs=logs)

    def _next_batch(self, cursor: Cursor) -> Batch | None:
        if not isinstance(cursor.feed, ArrayFeed):
            return next_batch(cursor.current_pass)
        return cursor.feed.batch(cursor.current_pass, tf.constant(cursor.seen, tf.int64))


def make_loop(
    feed: Feed, step: Step, *, eager: bool = False, jit_last_step: Step | None = None, asked: bool = True
) -> Loop:
    """Return the loop for a feed.

    With `jit_last_step` a loop over arrays is compiled as a whole, unasked only where XLA can; that is the
    step for its smaller last batch.
    """
    if eager:
        return EagerLoop(step)
    if not isinstance(feed, ArrayFeed):
        return IteratorLoop(step)
    if jit_last_step is not None:
        return CompiledArrayLoop(feed, step, jit_last_step, asked=asked)
    return ArrayLoop(feed, step)


_SCALAR = tf.TensorShape([])


def _empty_logs(step: Step) -> list[tf.Tensor]:
    return step.logs.empty() if step.logs is not None else []


def _log_shapes(step: Step) -> list[tf.TensorShape]:
    return step.logs.shapes if step.logs is not None else []


def _last_logs(step: Step, steps: int, tensors: list[tf.Tensor]) -> Logs | None:
    """Return the logs that a loop has carried, if it has made a step."""
    return step.logs.packed(tensors) if step.logs is not None and steps else None


def _arrays(cursor: Cursor) -> ArrayFeed:
    assert isinstance(cursor.feed, ArrayFeed)
    return cursor.feed
