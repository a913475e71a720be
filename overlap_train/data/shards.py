"""D: the validation set, divided among the workers at batch boundaries.

Three kinds, by where the batches are between two validations: in tensors, in a `tf.data` memory cache that
the first pass fills, or nowhere, to be drawn again each time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train import _keras
from overlap_train.data.pipeline import reorders
from overlap_train.data.preprocessing import Preprocess, map_batches, prepare, prepared_spec
from overlap_train.data.sources import size_bytes, without_autotune

__all__ = [
    "ArrayBatches",
    "BatchStream",
    "CachedBatches",
    "Shard",
    "StreamedBatches",
    "make_batches",
    "split_batches",
]

Fold = Callable[[Any, Any], Any]

_LEAST_JOINED = 32


@dataclass(frozen=True, slots=True)
class Shard:
    """A worker's part: the batches from `first` up to, not including, `stop`."""

    index: int
    first: int
    stop: int


def split_batches(num_batches: int, parts: int) -> list[Shard]:
    """Divides batches into at most `parts` runs whose lengths differ by one at most; none is empty."""
    parts = min(parts, num_batches)
    if parts == 0:
        return []
    bounds = [num_batches * i // parts for i in range(parts + 1)]
    return [Shard(i, bounds[i], bounds[i + 1]) for i in range(parts)]


class ArrayBatches:
    """Validation arrays held as tensors; a batch is a slice of rows, prepared by the user's function.

    Attributes:
        tensors: nested tensors, the rows along axis 0.
        num_batches: batches to evaluate, the last one possibly smaller.
    """

    def __init__(
        self,
        inputs: Any,
        *,
        num_samples: int,
        batch_size: int,
        steps: int | None,
        preprocess: Preprocess | None = None,
    ) -> None:
        self._preprocess = preprocess
        self.tensors = keras.tree.map_structure(tf.convert_to_tensor, inputs)
        static_size = None if num_samples % batch_size else batch_size
        sliced = keras.tree.map_structure(
            lambda t: tf.TensorSpec([static_size, *t.shape[1:]], t.dtype), self.tensors
        )
        self.element_spec = prepared_spec(preprocess, sliced)
        self._num_samples = num_samples
        self._batch_size = batch_size
        available = math.ceil(num_samples / batch_size)
        self.num_batches = min(steps, available) if steps else available

    def stream(self) -> BatchStream:
        """Returns the batches one by one."""
        size = self._batch_size
        rows = range(0, min(self.num_batches * size, self._num_samples), size)
        batches = (
            prepare(
                self._preprocess,
                keras.tree.map_structure(lambda t, row=row: t[row : row + size], self.tensors),
            )
            for row in rows
        )
        return BatchStream(lambda _: batches, None)

    def fold(self, first: tf.Tensor, stop: tf.Tensor, start: Any, step: Fold) -> Any:
        """Applies `step` to one batch after another, in a compiled function, and returns the last value."""

        def body(index: tf.Tensor, carried: Any) -> tuple[tf.Tensor, Any]:
            row = index * self._batch_size
            end = tf.minimum(row + self._batch_size, self._num_samples)
            batch = keras.tree.map_structure(lambda t: t[row:end], self.tensors)
            if self._num_samples % self._batch_size == 0:
                # Known where Keras would know it: see ArrayLoop.
                batch = keras.tree.map_structure(
                    lambda t: tf.ensure_shape(t, [self._batch_size, *t.shape[1:]]), batch
                )
            return index + 1, step(carried, prepare(self._preprocess, batch))

        return tf.while_loop(lambda index, _: index < stop, body, (first, start), parallel_iterations=1)[1]


class CachedBatches:
    """A dataset whose prepared batches are kept in memory after the first pass.

    Attributes:
        dataset: the batches, behind a cache that is shared by all iterators.
        num_batches: known after `fill`.
    """

    def __init__(self, dataset: tf.data.Dataset, steps: int | None) -> None:
        limited = dataset if steps is None else dataset.take(steps)
        self.dataset = without_autotune(limited.cache())
        self.element_spec = dataset.element_spec
        self.num_batches: int | None = None
        self._count = tf.function(self._count_batches, autograph=False).get_concrete_function()
        self._lock = threading.Lock()

    def fill(self) -> int:
        """Prepares every batch once, however many threads call it, and returns their number.

        Raises:
            ValueError: if there is none.
        """
        with self._lock:
            if self.num_batches is None:
                count = int(self._count())
                if count == 0:
                    raise ValueError("the validation data is empty: its dataset has no batch")
                self.num_batches = count
            return self.num_batches

    def fold(self, first: tf.Tensor, stop: tf.Tensor, start: Any, step: Fold) -> Any:
        """Applies `step` to one batch after another, in a compiled function, and returns the last value."""

        return self.dataset.skip(first).take(stop - first).reduce(start, step)

    def stream(self) -> BatchStream:
        """Returns the batches one by one."""
        return BatchStream(lambda _: iter(self.dataset), None)

    def _count_batches(self) -> tf.Tensor:
        return self.dataset.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1)


class StreamedBatches:
    """Batches that are drawn anew for each validation, by all workers from one iterator.

    The user's data sees one pass at a time: a worker turns to the next validation only when the pass of
    the one before has given its last batch, and the next pass is begun by the first worker to draw from it.

    Attributes:
        rewindable: whether another `begin` starts from the first batch again; a generator goes on where
            it stopped, as in Keras.
    """

    num_batches = None

    def __init__(
        self, adapter: _keras.DataAdapter, steps: int | None, preprocess: Preprocess | None = None
    ) -> None:
        self._adapter = adapter
        self._dataset = without_autotune(map_batches(preprocess, adapter.get_tf_dataset()))
        self.element_spec = self._dataset.element_spec
        self._steps = steps
        self._lock = threading.Lock()  # for the two below; not held while a batch is drawn
        self._last: BatchStream | None = None
        self._closed = False
        self.rewindable = _keras.is_rewindable_adapter(adapter)

    def begin(self) -> BatchStream:
        """Prepares one validation; call it in epoch order. Nothing happens before the first draw."""
        return BatchStream(self._begin_pass, self._steps)

    def stream(self) -> BatchStream:
        """Starts one validation, as `begin`."""
        return self.begin()

    def close(self) -> None:
        """Ends the last pass and lets none begin any more. Idempotent; does not wait for a draw."""
        with self._lock:
            self._closed = True
            self._end_pass()

    def _begin_pass(self, stream: BatchStream) -> Iterator[Any]:
        with self._lock:
            if self._closed:
                return iter(())
            self._end_pass()
            self._adapter.on_epoch_end()  # Keras does so when it rewinds the data
            self._adapter.on_epoch_begin()
            self._last = stream
            return iter(self._dataset)

    def _end_pass(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        length = self._adapter.num_batches
        if _keras.is_tf_dataset_adapter(self._adapter) and length and last.drawn >= length:
            iter(
                self._dataset
            )  # as Keras at the end of a pass: it draws from the seeds of the user's shuffles
        self._adapter.on_epoch_end()


class BatchStream:
    """The batches of one validation, each given to the first worker that asks.

    Attributes:
        drawn: batches given so far.
    """

    def __init__(self, begin: Callable[[BatchStream], Iterator[Any]], steps: int | None) -> None:
        self._begin = begin
        self._batches: Iterator[Any] | None = None
        self._left = steps
        self._lock = threading.Lock()
        self.drawn = 0

    def draw(self) -> Any | None:
        """Returns the next batch, or None when there is no more. May be called from any thread."""
        with self._lock:
            if self._left == 0:
                return None
            if self._batches is None:
                self._batches = self._begin(self)
            batch = next(self._batches, None)
            if batch is None:
                self._left = 0
                return None
            self.drawn += 1
            if self._left is not None:
                self._left -= 1
            return batch


def make_batches(
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    batch_size: int | None,
    steps: int | None,
    cache_bytes: int,
    preprocess: Preprocess | None = None,
    most_rows: Callable[[Any], int] | None = None,
) -> ArrayBatches | CachedBatches | StreamedBatches:
    """Returns the validation set as `keras.Model.evaluate` would batch it.

    Args:
        x: as `keras.Model.evaluate` takes it.
        y: likewise.
        sample_weight: likewise.
        batch_size: rows of a batch, for arrays; 32 if None.
        steps: batches to evaluate; all if None.
        cache_bytes: prepared batches up to this size are kept between validations.
        preprocess: prepares a batch.
        most_rows: returns how many rows of nested arrays may be evaluated as one batch, where no number of
            steps is given.

    Raises:
        ValueError: for empty or endless data, or as Keras.
    """
    if x is None:
        raise ValueError(
            "there is no validation data: x is None; pass arrays, a tf.data.Dataset, a keras.utils.PyDataset "
            "or a generator of batches"
        )
    adapter = _keras.adapt(x, y, sample_weight, batch_size=batch_size, steps=steps)
    if _keras.is_array_adapter(adapter):
        inputs = _keras.array_inputs(adapter)
        leaves = [leaf for leaf in keras.tree.flatten(inputs) if leaf is not None]
        num_samples = int(leaves[0].shape[0])
        if num_samples == 0:
            raise ValueError("the validation data is empty: its arrays have 0 rows; pass at least one")
        if _keras.are_dense(inputs):
            most = most_rows(inputs) if most_rows is not None and steps is None else 0
            return ArrayBatches(
                inputs,
                num_samples=num_samples,
                batch_size=adapter.batch_size * _together(adapter.batch_size, num_samples, most),
                steps=steps,
                preprocess=preprocess,
            )
        return StreamedBatches(adapter, steps, preprocess)
    if _keras.is_tf_dataset_adapter(adapter):
        dataset = map_batches(preprocess, adapter.get_tf_dataset())
        cardinality = int(dataset.cardinality())
        if cardinality == 0:
            raise ValueError("the validation data is empty: its dataset has no batch")
        if cardinality == tf.data.INFINITE_CARDINALITY and steps is None:
            raise ValueError(
                "the validation dataset never ends; pass validation_steps=... (or steps=... to evaluate), "
                "or limit it with dataset.take(n)"
            )
        repeatable = not reorders(dataset) and _keras.is_repeatable(dataset)
        # In this order: the look at the first batch begins a pass.
        if repeatable and _fits(dataset, cardinality, steps, cache_bytes):
            return CachedBatches(dataset, steps)
    return StreamedBatches(adapter, steps, preprocess)


def _together(batch_size: int, num_samples: int, most_rows: int) -> int:
    """Returns how many batches to join; enough are left for any number of workers to share evenly."""
    return max(1, min(most_rows // batch_size, num_samples // batch_size // _LEAST_JOINED))


def _fits(dataset: tf.data.Dataset, cardinality: int, steps: int | None, cache_bytes: int) -> bool:
    """Whether the prepared batches are known to fit, by the size of the first one."""
    count = min(n for n in (cardinality, steps) if n is not None and n > 0) if cardinality > 0 else steps
    if count is None:
        return False
    first = next(iter(dataset.take(1)), None)
    if first is None:
        return True
    leaves = [leaf for leaf in tf.nest.flatten(first, expand_composites=True) if tf.is_tensor(leaf)]
    return count * sum(size_bytes(leaf) for leaf in leaves) <= cache_bytes
