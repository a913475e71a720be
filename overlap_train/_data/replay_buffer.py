"""A: batches of data that cannot be drawn again, kept as far back as the training may go.

Each batch that the loop draws is also put into a queue: by reference, or as a copy where its tensors may
share memory with arrays that the user fills again. After a rollback these batches come first; then the
iterators go on where they stand, with what they have prefetched. Belongs to the training thread.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

import tensorflow as tf

_UNBOUNDED = 2**31 - 1
_STRING_BYTES = 16  # of a string tensor's element, apart from its text


class ReplayPass:
    """One pass: its batches that are replayed, and the iterator that follows them."""

    def __init__(self, number: int, left: int, replay: Any, live: Any) -> None:
        self.number, self.left = number, left
        self._replay, self._live = replay, live

    @property
    def iterator(self) -> Any:
        """The iterator that yields the next batch."""
        return self._replay if self.left else self._live


class ReplayBuffer:
    """The passes over a dataset, and the batches drawn from them that a rollback may need."""

    def __init__(self, dataset: tf.data.Dataset, limit_bytes: int, *, copies: bool) -> None:
        self.limit_bytes = limit_bytes
        self._spec = dataset.element_spec
        with tf.device("CPU:0"):
            self._past = tf.queue.FIFOQueue(_UNBOUNDED, [tf.variant, tf.int64], [[], []])
            self._future = tf.queue.FIFOQueue(_UNBOUNDED, [tf.variant], [[]])
            self._size_bytes = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._dataset = self._recorded(dataset, copies=copies)
        self._live: dict[int, Any] = {}
        self._past_places: deque[tuple[int, int]] = deque()
        self._future_places: deque[tuple[int, int]] = deque()

    @property
    def size_bytes(self) -> int:
        """Bytes of the drawn batches that are kept."""
        return int(self._size_bytes)

    @property
    def full(self) -> bool:
        """Whether no more batches may be kept."""
        return self.size_bytes >= self.limit_bytes

    def open(self, number: int) -> ReplayPass:
        """Returns a pass: the next one, or one that is made again."""
        if number not in self._live:
            self._live[number] = iter(self._dataset)
        left = sum(pass_number == number for pass_number, _ in self._future_places)
        replay = self._replay(left) if left else None
        return ReplayPass(number, left, replay, self._live[number])

    def used(self, batches: ReplayPass, first: int, steps: int) -> None:
        """Records batches that have been drawn, from number `first` of a pass on."""
        self._past_places.extend((batches.number, first + i) for i in range(steps))
        replays = min(batches.left, steps)
        batches.left -= replays
        for _ in range(replays):
            self._future_places.popleft()

    def most_steps(self, batches: ReplayPass) -> int:
        """Returns how many batches the next call may draw, at least one."""
        left = self.limit_bytes
        count = len(self._past_places)
        if count:
            size_bytes = self.size_bytes
            left = int((self.limit_bytes - size_bytes) * count / max(size_bytes, 1))
        return max(1, min(left, batches.left or _UNBOUNDED))

    def rewind(self, number: int, seen: int) -> None:
        """Makes the batches drawn from batch `seen` of pass `number` on come again."""
        self.forget(number, seen)
        past = self._dequeue_past(len(self._past_places))
        future = self._future.dequeue_many(len(self._future_places))
        self._future.enqueue_many(past)
        self._future.enqueue_many(future)
        self._future_places.extendleft(reversed(self._past_places))
        self._past_places.clear()

    def forget(self, number: int, seen: int) -> None:
        """Lets go of what only a rollback to before batch `seen` of pass `number` would need."""
        self._live = {n: iterator for n, iterator in self._live.items() if n >= number}
        count = 0
        while self._past_places and self._past_places[0] < (number, seen):
            self._past_places.popleft()
            count += 1
        if count:
            self._dequeue_past(count)

    def _dequeue_past(self, count: int) -> tf.Tensor:
        """Takes the oldest batches out of the past, variant[count]."""
        with tf.device("CPU:0"):
            batches, sizes = self._past.dequeue_many(count)
            self._size_bytes.assign_sub(tf.reduce_sum(sizes))
        return batches

    def _replay(self, count: int) -> Any:
        return iter(self._recorded(tf.data.Dataset.range(count).map(self._replayed), copies=False))

    def _recorded(self, dataset: tf.data.Dataset, *, copies: bool) -> tf.data.Dataset:
        # The last stage, so that what is prefetched is not recorded before it is drawn.
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
        recording = self._past.enqueue([tf.raw_ops.OptionalFromValue(components=parts), size_bytes])
        with tf.control_dependencies([recording, self._size_bytes.assign_add(size_bytes)]):
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    def _replayed(self, _: tf.Tensor) -> Any:
        specs = tf.nest.flatten(self._spec, expand_composites=True)
        parts = tf.raw_ops.OptionalGetValue(
            optional=self._future.dequeue(),
            output_types=[spec.dtype for spec in specs],
            output_shapes=[spec.shape for spec in specs],
        )
        return tf.nest.pack_sequence_as(self._spec, parts, expand_composites=True)


def _size_bytes(part: tf.Tensor) -> tf.Tensor:
    if part.dtype == tf.string:
        lengths = tf.reduce_sum(tf.cast(tf.strings.length(part), tf.int64))
        return lengths + tf.size(part, tf.int64) * _STRING_BYTES
    return tf.size(part, tf.int64) * (0 if part.dtype == tf.variant else part.dtype.size)
