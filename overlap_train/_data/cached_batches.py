"""D: validation batches in memory, taken by number in compiled loops; of a dataset, after a first pass."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from overlap_train._data.batches import Fold
from overlap_train._data.iterators import next_batch
from overlap_train._data.pipeline import rows_of_batches
from overlap_train._data.streamed_batches import BatchStream


class CachedFold(Fold):
    """Walks through lists of tensors, one list for each component of a batch."""

    def __init__(self, element_spec: Any) -> None:
        self._element_spec = element_spec
        # Of tensors, ragged and sparse ones in their parts; what a dataset has for None is no tensor.
        self._leaves = tf.nest.flatten(element_spec, expand_composites=True)
        self.components = [spec for spec in self._leaves if isinstance(spec, tf.TensorSpec)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CachedFold) and str(other._element_spec) == str(self._element_spec)

    def __hash__(self) -> int:
        return hash(str(self._element_spec))

    def batch(self, held: Sequence[tf.Tensor], index: Any) -> Any:
        """Returns the tensors of one batch."""
        index = tf.cast(index, tf.int32)
        with tf.device("CPU:0"):  # a list that went to another device would take all its tensors along
            tensors = [
                tf.raw_ops.TensorListGetItem(
                    input_handle=handle, index=index, element_shape=-1, element_dtype=spec.dtype
                )
                for handle, spec in zip(held, self.components, strict=True)
            ]
        shaped = (tf.ensure_shape(t, spec.shape) for t, spec in zip(tensors, self.components, strict=True))
        leaves = [next(shaped) if isinstance(spec, tf.TensorSpec) else None for spec in self._leaves]
        return tf.nest.pack_sequence_as(self._element_spec, leaves, expand_composites=True)


class CachedBatches:
    """A dataset whose prepared batches are kept in memory after the first pass.

    They are kept as lists of tensors that a compiled loop takes by number, and not as a cache of `tf.data`:
    a worker would walk through the batches before its own, and `Dataset.reduce` makes the workers wait for
    each other (docs/results/2026-11-27-full-cores.md).
    """

    preparation = None

    def __init__(self, dataset: tf.data.Dataset, steps: int | None) -> None:
        self._dataset = dataset if steps is None else dataset.take(steps)
        self.steps = steps
        # Whether only drawing shows where the data ends.
        self.finds_end = bool(dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY)
        self.element_spec = self.raw_spec = dataset.element_spec
        self.num_batches: int | None = None
        self.fold = CachedFold(self.element_spec)
        # What `fold` reads after `fill`: a list of tensors, variant[], for each component of a batch.
        self.held: tuple[tf.Tensor, ...] = ()
        self.data_spec = tuple(tf.TensorSpec([], tf.variant) for _ in self.fold.components)
        self._first_pass: tuple[Any, Any] | None = None  # its iterator and its first batch, until `fill`
        self._lock = threading.Lock()

    @property
    def first(self) -> Any:
        """The first batch, or None if there is none; it begins the pass that `fill` goes on with."""
        return self._begin()[1]

    def _begin(self) -> tuple[Any, Any]:
        if self._first_pass is None:
            iterator = iter(self._dataset)
            self._first_pass = iterator, next_batch(iterator)
        return self._first_pass

    @property
    def first_rows(self) -> int | None:
        """Rows of the first batch, or None if they are not known beforehand."""
        return rows_of_batches(self._dataset)

    @property
    def last_count(self) -> int:
        """Batches that the last validation had."""
        return self.num_batches or 0

    @property
    def blank(self) -> tuple[tf.Tensor, ...]:
        """A stand-in for `held` where no batch is taken from it."""
        return self.held

    def data_on(self, device: str | None) -> tuple[tf.Tensor, ...]:
        """Returns `held`: the lists stay where they are, and each batch goes to the device when drawn."""
        return self.held

    def fill(self) -> int:
        """Prepares every batch once, however many threads call it, and returns their number."""
        with self._lock:
            if self.num_batches is not None:
                return self.num_batches
            # After an error of the data its iterator would skip a batch, so that a new one begins.
            (iterator, first), self._first_pass = self._begin(), None
            with tf.device("CPU:0"):
                self.num_batches, self.held = _draw_all(iterator, first, self.fold.components)
            return self.num_batches

    def stream(self) -> BatchStream:
        """Returns the batches one by one."""
        return BatchStream(
            lambda _: (self.fold.batch(self.held, index) for index in range(self.fill())), None
        )


def _draw_all(
    iterator: Any, batch: Any, components: list[tf.TensorSpec]
) -> tuple[int, tuple[tf.Tensor, ...]]:
    """Returns the number of batches, `batch` and those that follow it, and the lists of their components.

    They are drawn one by one: compiling a loop takes as long as some hundreds of them.
    """
    lists, count = [_empty_list(spec.dtype) for spec in components], 0
    while batch is not None:
        leaves = [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None]
        for place, (handle, leaf) in enumerate(zip(lists, leaves, strict=True)):
            lists[place] = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=leaf)
        batch, count = next_batch(iterator), count + 1
    return count, tuple(lists)


def _empty_list(dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=dtype)
