"""The compiled epoch: loops that make many training steps in one call, and how many of them a call makes.

A loop is driven by the training thread and touches the model's variables only inside its calls; between two
calls the model is in a state in which a snapshot can be taken.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.batches import specs_of_rows
from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
from overlap_train._support.closing import Closing
from overlap_train._support.threads import in_background
from overlap_train._training.step import Logs, Step

_CALL_S = 0.25


class Pace:
    """Sizes calls by the time of a step: a quarter of a second each, or a fixed number of steps.

    Then Python's share is negligible, and interrupts and deliveries still come in time. The first two calls
    are short: there is no measurement yet, and the first one includes tracing.
    """

    def __init__(self, steps_per_call: int | None = None) -> None:
        self._fixed = steps_per_call
        self.step_s: float | None = None  # as last measured; None before the second call
        self._calls = 0

    def steps(self) -> int:
        """Return how many steps the next call should make."""
        if self._fixed is not None:
            return self._fixed
        if self.step_s is None:
            return 1 if self._calls == 0 else 4
        return max(1, round(_CALL_S / self.step_s))

    def observe(self, steps: int, seconds: float) -> None:
        """Note how long a call of `steps` steps took."""
        self._calls += 1
        if self._calls == 1 or steps == 0:
            return
        latest = max(seconds / steps, 1e-9)
        # Within a factor of four at a time: one stalled call must not shrink the next ones to nothing.
        if self.step_s is not None:
            latest = min(max(latest, self.step_s / 4), self.step_s * 4)
        self.step_s = latest


@dataclass(frozen=True, slots=True)
class StepsDone:
    """What one call did."""

    steps: int
    exhausted: bool = False  # the data ended before the steps that were asked for
    halted: bool = False  # the loop ended itself because the loss was no longer finite
    logs: Logs = field(default_factory=dict)  # carried from the last step, if one was made


class Loop(Closing):
    """Makes training steps from the batches at a cursor; compiled, it holds no data."""

    name: str
    splits: int = 1  # parts of a batch that run at the same time
    plan: str = ""  # how the steps are computed, as far as it may round otherwise
    description: str = ""  # of the plan, for people
    _is_warm: bool = False
    _warm_up: Future[object] | None = None

    @abc.abstractmethod
    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        """Make up to `max_steps` steps, all from the current pass, and advance the cursor."""

    def on_nothing(self, feed: Feed) -> Callable[[], object] | None:
        """Return a call of the compiled loop that makes no step, for any thread, or None. May trace."""
        return None

    def begin_warm_up(self, feed: Feed) -> None:
        """Make that call on another thread, once, and before the first `run`; `close` waits for it.

        In it TensorFlow optimises the graph and makes its kernels, which takes as long as hundreds of steps.
        """
        work = None if self._is_warm else self.on_nothing(feed)
        self._is_warm = True
        if work is not None:
            self._warm_up = in_background(work, "loop-warm-up", daemon=True)

    def close(self) -> None:
        """Wait for the end of the warm-up. May be called more than once."""
        warm_up, self._warm_up = self._warm_up, None
        if warm_up is not None:
            warm_up.exception()  # which comes again with the first step

    def close_now(self) -> None:
        """Do nothing: the warm-up ends by itself."""


class ArrayLoop(Loop):
    """Rows of in-memory tensors, gathered by the pass's order inside the loop.

    A batch has a static shape only if all are full, as under Keras, which averages several losses by it.
    """

    name = "in_memory"

    def __init__(self, feed: ArrayFeed, step: Step, *, compiled: bool = False) -> None:
        self._step = step
        self._many = self._trace(feed, compiled=compiled)

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        first, last = (tf.constant(n, tf.int64) for n in (cursor.seen, cursor.seen + max_steps))
        reached, finite, logs = self._many(arrays_of(cursor).tensors, cursor.current_pass, first, last)
        steps = int(reached) - cursor.seen
        cursor.advance(steps)
        return StepsDone(steps, halted=not bool(finite), logs=self._step.logs.packed(logs))

    def on_nothing(self, feed: Feed) -> Callable[[], object]:
        assert isinstance(feed, ArrayFeed)
        zero, order = tf.constant(0, tf.int64), tf.zeros([feed.num_samples], tf.int64)
        return functools.partial(self._many, feed.tensors, order, zero, zero)

    def _trace(self, feed: ArrayFeed, *, compiled: bool) -> Callable[..., Any]:
        """Trace the loop for any arrays of such rows; for XLA, for as many of them and full batches only."""
        step = self._step

        def many(tensors: Any, order: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> tuple[Any, ...]:
            def body(index: tf.Tensor, *_: Any) -> tuple[Any, ...]:
                return (index + 1, *step.run_and_check(feed.batch(order, index, tensors, full=compiled)))

            result: tuple[Any, ...] = tf.while_loop(
                lambda index, finite, _: tf.logical_and(index < last, finite),
                body,
                (first, tf.constant(True), step.logs.empty()),
                shape_invariants=(SCALAR, SCALAR, step.logs.shapes),
                parallel_iterations=1,
            )
            return result

        rows = feed.num_samples if compiled else None
        specs = specs_of_rows(feed.tensors, rows)
        order, number = tf.TensorSpec([rows], tf.int64), tf.TensorSpec([], tf.int64)
        function = tf.function(many, autograph=False, jit_compile=compiled or None)
        concrete: Callable[..., Any] = function.get_concrete_function(specs, order, number, number)
        return concrete


SCALAR = tf.TensorShape([])


def arrays_of(cursor: Cursor) -> ArrayFeed:
    """Return the arrays that a training draws from."""
    assert isinstance(cursor.feed, ArrayFeed)
    return cursor.feed
