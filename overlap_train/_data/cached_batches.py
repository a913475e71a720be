"""D: validation batches in memory, taken by number in compiled loops; of a dataset, after a first pass."""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from overlap_train._data.iterators import drawn_from, next_batch, step_through
from overlap_train._data.pipeline import rows_of_batches

_ONE_BY_ONE = 64  # batches that Python draws, at some 0.1 ms each


class CachedFold:
    """Takes batches from lists of tensors, one list for each component. Holds no data."""

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
                count, self.held = _draw_all(iterator, first, self.fold.components)
            self.num_batches = int(count)
            return self.num_batches

    def numbers(self) -> list[float]:
        """Draws every batch, and returns numbers that tell them from others: means, or parts of checksums.

        The parts are so small that the next one is not close.
        """
        numbers = []
        for index in range(self.fill()):
            for part in tf.nest.flatten(self.fold.batch(self.held, index), expand_composites=True):
                if part is not None and part.dtype.is_floating:
                    numbers.append(float(tf.reduce_mean(tf.abs(tf.cast(part, tf.float64)))))
                elif part is not None:
                    checksum = zlib.crc32(tf.io.serialize_tensor(part).numpy())
                    numbers += map(float, divmod(checksum % 900**2, 900))
        return numbers


def _draw_all(
    iterator: Any, first: Any, components: list[tf.TensorSpec]
) -> tuple[Any, tuple[tf.Tensor, ...]]:
    """Returns the number of batches, the first included, and the lists of their components.

    Compiling the loop that draws takes as long as drawing some hundreds of batches one by one, so only many
    batches are drawn by it.
    """
    batch, count = first, 0
    lists = tuple(
        tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=spec.dtype)
        for spec in components
    )
    while batch is not None:
        lists, count = _longer(lists, batch), count + 1
        if count == _ONE_BY_ONE:
            others, lists = _draw_the_rest(iterator, lists)
            return count + others, lists
        batch = next_batch(iterator)
    return count, lists


def _longer(lists: tuple[tf.Tensor, ...], batch: Any) -> tuple[tf.Tensor, ...]:
    """Returns the lists with the components of a batch appended."""
    tensors = [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None]
    return tuple(
        tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=tensor)
        for handle, tensor in zip(lists, tensors, strict=True)
    )


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _draw_the_rest(iterator: Any, lists: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    """Draws all further batches; returns their number, and the lists with their components appended.

    Traced once in a process for each kind of batch, which is all that the trace knows of the data.
    """
    draw, shapes = functools.partial(drawn_from, iterator), tuple(handle.shape for handle in lists)
    with tf.device("CPU:0"):
        count, _, lists = step_through(
            draw, lambda batch, lists: _longer(lists, batch), tf.int64.max, lists, shapes
        )
    return count, lists
