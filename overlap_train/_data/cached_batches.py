"""D: validation batches in memory, taken by number in compiled loops; of a dataset, after a first pass."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from overlap_train._data.batches import next_batch
from overlap_train._data.pipeline_parts import rows_of_batches
from overlap_train._data.streamed_batches import BatchStream

__all__ = ["CachedBatches", "Fold"]


BatchStep = Callable[[Any], list[tf.Tensor]]
"""What is done with one batch, inside a compiled loop; returns the tensors that the loop carries."""


class Fold(abc.ABC):
    """Goes through batches in memory inside a compiled function. Holds no data; compares by what it does."""

    def over(
        self,
        held: Any,
        first: tf.Tensor,
        stop: tf.Tensor,
        start: list[tf.Tensor],
        step: BatchStep,
        shapes: list[tf.TensorShape],
    ) -> list[tf.Tensor]:
        """Does `step` with the batches from `first` to before `stop`, and returns the last tensors."""
        _, carried = tf.while_loop(
            lambda index, _: index < stop,
            lambda index, _: (index + 1, step(self.batch(held, index))),
            (first, start),
            shape_invariants=(tf.TensorShape([]), shapes),
            parallel_iterations=1,
        )
        return list(carried)

    @abc.abstractmethod
    def batch(self, held: Any, index: Any) -> Any:
        """Returns one batch."""


_ONE_BY_ONE = 64  # batches that Python draws, at some 0.1 ms each


class CachedFold(Fold):
    """Through lists of tensors, one list for each component of a batch."""

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

    def __init__(self, dataset: tf.data.Dataset, steps: int | None) -> None:
        self._dataset = dataset if steps is None else dataset.take(steps)
        self.element_spec = self.raw_spec = dataset.element_spec
        self.preparation = None
        self.num_batches: int | None = None
        self._fold = CachedFold(self.element_spec)
        self._components = self._fold.components
        self._lists: tuple[tf.Tensor, ...] = ()
        self._begun: tuple[Any, Any] | None = None
        self._failed: Exception | None = None
        self.failures = 0
        self._lock = threading.Lock()

    @property
    def first(self) -> Any:
        """The first batch, or None if there is none; it begins the pass that `fill` goes on with."""
        if self._begun is None:
            iterator = iter(self._dataset)
            self._begun = iterator, next_batch(iterator)
        return self._begun[1]

    @property
    def first_rows(self) -> int | None:
        """Rows of the first batch, or None if they are not known beforehand."""
        return rows_of_batches(self._dataset)

    @property
    def expected(self) -> int:
        """Batches of a validation; the first call prepares them."""
        return self.fill()

    @property
    def last_count(self) -> int:
        """Batches that the last validation had."""
        return self.num_batches or 0

    @property
    def held(self) -> tuple[tf.Tensor, ...]:
        """What `fold` reads after `fill`: a list of tensors, variant[], for each component of a batch."""
        return self._lists

    @property
    def blank(self) -> tuple[tf.Tensor, ...]:
        """What stands in for `held` where no batch is taken from it: the same."""
        return self._lists

    def held_on(self, device: str | None) -> tuple[tf.Tensor, ...]:
        """Returns the same: the lists stay where they are, and each batch goes to the device when drawn."""
        return self._lists

    @property
    def held_spec(self) -> tuple[tf.TensorSpec, ...]:
        """Specs of `held`."""
        return tuple(tf.TensorSpec([], tf.variant) for _ in self._components)

    def fill(self, failures: int | None = None) -> int:
        """Prepares every batch once, however many threads call it, and returns their number.

        `failures` are those that the caller knows of: another one is its own. None draws again after any.
        """
        with self._lock:
            if self.num_batches is not None:
                return self.num_batches
            if self._failed is not None and failures is not None and failures < self.failures:
                raise self._failed
            try:
                self._lists, self.num_batches = self._drawn()
            except Exception as error:
                self._failed, self.failures = error, self.failures + 1
                raise
            return self.num_batches

    def _drawn(self) -> tuple[tuple[tf.Tensor, ...], int]:
        _ = self.first  # which begins the pass
        assert self._begun is not None
        # Who draws again after an error of the data begins again: an iterator goes on behind it.
        (iterator, first), self._begun = self._begun, None
        with tf.device("CPU:0"):
            empty = tuple(_empty_list(spec.dtype) for spec in self._components)
            count, lists = _draw_all(iterator, first, empty)
        return tuple(lists), int(count)

    @property
    def fold(self) -> CachedFold:
        """Goes through the batches inside a compiled function."""
        return self._fold

    def stream(self) -> BatchStream:
        """Returns the batches one by one."""
        return BatchStream(
            lambda _: (self._fold.batch(self._lists, index) for index in range(self.fill())), None
        )


def _draw_all(iterator: Any, first: Any, lists: tuple[tf.Tensor, ...]) -> tuple[Any, tuple[tf.Tensor, ...]]:
    """Returns the number of batches, the first included, and the lists with their components.

    Compiling what draws them takes as long as drawing some hundreds of them one by one, so it is left for
    those that are many.
    """
    batch, count = first, 0
    while batch is not None:
        lists, count = _longer(lists, batch), count + 1
        if count == _ONE_BY_ONE:
            drawn: tuple[Any, tuple[tf.Tensor, ...]] = _draw_the_rest(
                iterator, tf.constant(count, tf.int64), lists
            )
            return drawn
        batch = next_batch(iterator)
    return count, lists


def _longer(lists: tuple[tf.Tensor, ...], batch: Any) -> tuple[tf.Tensor, ...]:
    """Returns the lists with the components of a batch behind them."""
    return tuple(
        tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=tensor)
        for handle, tensor in zip(lists, _tensors_of(batch), strict=True)
    )


def _tensors_of(batch: Any) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None]


def _empty_list(dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=dtype)


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _draw_the_rest(
    iterator: Any, count: tf.Tensor, begun: tuple[tf.Tensor, ...]
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    """Draws all further batches; returns the number of all, and the lists of their components.

    Traced once in a process for each kind of batch, which is all that the trace knows of the data.
    """
    with tf.device("CPU:0"):

        def body(count: tf.Tensor, _: tf.Tensor, lists: tuple[tf.Tensor, ...]) -> tuple[Any, ...]:
            batch = iterator.get_next_as_optional()

            def keep() -> tuple[Any, ...]:
                return count + 1, tf.constant(True), _longer(lists, batch.get_value())

            kept: tuple[Any, ...] = tf.cond(
                batch.has_value(), keep, lambda: (count, tf.constant(False), lists)
            )
            return kept

        count, _, lists = tf.while_loop(
            lambda _count, more, _lists: more,
            body,
            (count, tf.constant(True), begun),
            parallel_iterations=1,
        )
    return count, lists
