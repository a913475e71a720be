"""A: batches of data that cannot be drawn again, kept as far back as the training may go.

Each batch that the loop draws leaves a reference to its tensors in a queue, or a copy where they may lie in
memory of the user's arrays, which their owner may fill anew. After a rollback these
come first; then the iterators that have been made go on where they stand, with what they have fetched ahead.
Belongs to the training thread.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["ReplayBuffer", "ReplayPass"]

_UNBOUNDED = 2**31 - 1
_DRAWING = "IteratorGetNext"  # TensorFlow's operation, which it names in an error that comes through it
_STRING_BYTES = 16  # of a string tensor's element, what it points to apart


class ReplayPass:
    """One pass: what is replayed of it, and what goes on behind that."""

    def __init__(self, number: int, left: int, replay: Any, live: Any, error: Exception | None) -> None:
        self.number, self.left, self.error = number, left, error
        self._replay, self._live = replay, live

    @property
    def iterator(self) -> Any:
        """What the next batch is drawn from."""
        if self.left:
            return self._replay
        if self.error is not None:
            raise self.error
        return self._live


class ReplayBuffer:
    """The passes over a dataset, and the batches drawn from them that a rollback may need."""

    def __init__(self, dataset: tf.data.Dataset, limit_bytes: int, *, copies: bool) -> None:
        self.limit_bytes = limit_bytes
        self._spec = dataset.element_spec
        with tf.device("CPU:0"):
            self._drawn = tf.queue.FIFOQueue(_UNBOUNDED, [tf.variant, tf.int64], [[], []])
            self._ahead = tf.queue.FIFOQueue(_UNBOUNDED, [tf.variant], [[]])
            self._size_bytes = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._dataset = self._recorded(dataset, copies=copies)
        self._live: dict[int, Any] = {}
        self._errors: dict[int, Exception] = {}
        self._drawn_places: deque[tuple[int, int]] = deque()
        self._ahead_places: deque[tuple[int, int]] = deque()

    @property
    def size_bytes(self) -> int:
        """Of the batches that have been drawn and are kept."""
        return int(self._size_bytes)

    def open(self, number: int) -> ReplayPass:
        """Returns a pass: the next one, or one that is made again."""
        if number not in self._live:
            self._live[number] = iter(self._dataset)
        left = sum(place[0] == number for place in self._ahead_places)
        replay = self._replay(left) if left else None
        return ReplayPass(number, left, replay, self._live[number], self._errors.get(number))

    def used(self, kept: ReplayPass, first: int, steps: int) -> None:
        """Takes note of batches that have been drawn."""
        self._drawn_places.extend((kept.number, first + i) for i in range(steps))
        replayed = min(kept.left, steps)
        kept.left -= replayed
        for _ in range(replayed):
            self._ahead_places.popleft()

    def failed(self, kept: ReplayPass, first: int, error: Exception) -> None:
        """Takes note of what a call had drawn before it raised."""
        self.used(kept, first, int(self._drawn.size()) - len(self._drawn_places))
        if _DRAWING in str(error):
            kept.error = self._errors[kept.number] = error

    def most_steps(self, kept: ReplayPass) -> int:
        """Returns how many batches the next call may draw, at least one."""
        left = self.limit_bytes
        count = len(self._drawn_places)
        if count:
            size_bytes = self.size_bytes
            left = int((self.limit_bytes - size_bytes) * count / max(size_bytes, 1))
        return max(1, min(left, kept.left or _UNBOUNDED))

    def rewind(self, number: int, seen: int) -> None:
        """Makes all that has been drawn from batch `seen` of pass `number` on come again."""
        self.forget(number, seen)
        count = tf.constant(len(self._drawn_places)), tf.constant(len(self._ahead_places))
        _turn_back(self._drawn.queue_ref, self._ahead.queue_ref, self._size_bytes.handle, *count)
        self._ahead_places.extendleft(reversed(self._drawn_places))
        self._drawn_places.clear()

    def forget(self, number: int, seen: int) -> None:
        """Lets go of what only a rollback to before batch `seen` of pass `number` would need."""
        for made in [n for n in self._live if n < number]:
            del self._live[made]
            self._errors.pop(made, None)
        count = 0
        while self._drawn_places and self._drawn_places[0] < (number, seen):
            self._drawn_places.popleft()
            count += 1
        if count:
            _drop(self._drawn.queue_ref, self._size_bytes.handle, tf.constant(count))

    def _replay(self, count: int) -> Any:
        return iter(self._recorded(tf.data.Dataset.range(count).map(self._replayed), copies=False))

    def _recorded(self, dataset: tf.data.Dataset, *, copies: bool) -> tf.data.Dataset:
        # The last stage, so that what has been fetched ahead is not recorded before it is drawn.
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False
        options.experimental_optimization.map_parallelization = False
        return dataset.map(functools.partial(self._record, copies)).with_options(options)

    def _record(self, copies: bool, *batch: Any) -> Any:
        element = batch if type(self._spec) is tuple else batch[0]
        parts = tf.nest.flatten(element, expand_composites=True)
        size_bytes = tf.add_n([_size_bytes(part) for part in parts])
        if copies:
            parts = [part if part.dtype == tf.variant else tf.raw_ops.DeepCopy(x=part) for part in parts]
        kept = self._drawn.enqueue([tf.raw_ops.OptionalFromValue(components=parts), size_bytes])
        with tf.control_dependencies([kept, self._size_bytes.assign_add(size_bytes)]):
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    def _replayed(self, _: tf.Tensor) -> Any:
        specs = tf.nest.flatten(self._spec, expand_composites=True)
        parts = tf.raw_ops.OptionalGetValue(
            optional=self._ahead.dequeue(),
            output_types=[spec.dtype for spec in specs],
            output_shapes=[spec.shape for spec in specs],
        )
        return tf.nest.pack_sequence_as(self._spec, parts, expand_composites=True)


# Of handles, so that each is traced once in a process.
@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _drop(drawn: tf.Tensor, total: tf.Tensor, count: tf.Tensor) -> None:
    """Takes batches out of a queue for good."""
    _repeat(count, lambda: _take_off(total, _next_drawn(drawn)[1]))


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _turn_back(
    drawn: tf.Tensor, ahead: tf.Tensor, total: tf.Tensor, count: tf.Tensor, ahead_count: tf.Tensor
) -> None:
    """Puts what has been drawn before what is ahead."""

    def move() -> Any:
        batch, size_bytes = _next_drawn(drawn)
        with tf.control_dependencies([_take_off(total, size_bytes)]):
            return tf.raw_ops.QueueEnqueueV2(handle=ahead, components=[batch])

    def around() -> Any:
        (batch,) = tf.raw_ops.QueueDequeueV2(handle=ahead, component_types=[tf.variant])
        return tf.raw_ops.QueueEnqueueV2(handle=ahead, components=[batch])

    with tf.control_dependencies([_repeat(count, move)]):
        _repeat(ahead_count, around)


def _next_drawn(drawn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    batch, size_bytes = tf.raw_ops.QueueDequeueV2(handle=drawn, component_types=[tf.variant, tf.int64])
    return batch, size_bytes


def _take_off(total: tf.Tensor, size_bytes: tf.Tensor) -> Any:
    return tf.raw_ops.AssignSubVariableOp(resource=total, value=size_bytes)


def _repeat(count: tf.Tensor, body: Callable[[], Any]) -> tf.Tensor:
    def step(index: tf.Tensor) -> tuple[tf.Tensor]:
        with tf.control_dependencies([body()]):
            return (index + 1,)

    (done,) = tf.while_loop(lambda index: index < count, step, (tf.constant(0),), parallel_iterations=1)
    return done


def _size_bytes(part: tf.Tensor) -> tf.Tensor:
    if part.dtype == tf.string:
        lengths = tf.reduce_sum(tf.cast(tf.strings.length(part), tf.int64))
        return lengths + tf.size(part, tf.int64) * _STRING_BYTES
    return tf.size(part, tf.int64) * (0 if part.dtype == tf.variant else part.dtype.size)
