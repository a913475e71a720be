"""A: the training data, as something that makes one pass after another and can be rewound.

A pass is whatever one compiled call reads from: for arrays the order of the rows, for everything else an
iterator. Passes are made when and as often as `keras.Model.fit` makes them, because each one may advance a
seed of the user's pipeline. All of this belongs to the training thread.
"""

from __future__ import annotations

import abc
import concurrent.futures
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._data.orders import RowOrders, in_background
from overlap_train._data.pipeline import captured_by, draws_lazily, keeps_state, read_by, without_autotune
from overlap_train._data.preprocessing import (
    Preprocess,
    map_batches,
    prepare,
    prepared_spec,
    trace_preprocess,
)
from overlap_train._inspection.traced import CapturedVariable, TracedFunction
from overlap_train._keras import data as keras_data
from overlap_train.zero_copy import as_tensor, explain

__all__ = [
    "ArrayFeed",
    "Feed",
    "FeedOptions",
    "IteratorFeed",
    "copied_bytes",
    "make_feed",
    "size_bytes",
]


class Feed(abc.ABC):
    """Training batches, one pass after another.

    Attributes:
        num_batches: batches in one pass, or None if that is not known beforehand.
        element_spec: nested `tf.TensorSpec` of one batch, the batch dimension None.
        drawn: passes made so far.
        draws_seeds: whether making a pass that is not read changes the ones after it.
        preparation: what makes a batch of rows inside the loop, if anything does.
        captured: variables that the functions of a pipeline read whenever it runs ahead.
        reads: the names of these, and of tables.
    """

    num_batches: int | None
    element_spec: Any
    draws_seeds = True
    preparation: TracedFunction | None = None
    captured: Sequence[CapturedVariable] = ()
    reads: Sequence[str] = ()

    def __init__(self) -> None:
        self.drawn = 0

    @property
    def full_batch(self) -> int | None:
        """Rows of a full batch, or None if that is not known beforehand."""
        leaves = [s for s in keras.tree.flatten(self.element_spec) if isinstance(s, tf.TensorSpec)]
        return int(leaves[0].shape[0]) if leaves and leaves[0].shape.rank and leaves[0].shape[0] else None

    @property
    @abc.abstractmethod
    def rewindable(self) -> bool:
        """Whether `rewind` works."""

    @abc.abstractmethod
    def new_pass(self) -> Any:
        """Begins the next pass and counts it."""

    @abc.abstractmethod
    def rewind(self, drawn: int) -> None:
        """Makes the next pass be pass number `drawn` again."""

    def forget(self, drawn: int) -> None:
        """Says that nobody will rewind to before pass number `drawn`."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns what tells this data from other data, as far as that is cheap to find out."""

    def begin_epoch(self) -> None:
        """Tells the user's data that an epoch begins (`PyDataset.on_epoch_begin`)."""

    def end_epoch(self) -> None:
        """Tells the user's data that an epoch is over (`PyDataset.on_epoch_end`)."""


class ArrayFeed(Feed):
    """Arrays held as tensors of their own dtype, gathered by an order inside the compiled loop.

    Read-only arrays are not copied where their layout allows that (`zero_copy.as_tensor`), so a mapped file
    may be larger than memory. Others are, as by Keras: who changes them during the training changes nothing.

    A pass is the order of the rows, int64[num_samples].

    Attributes:
        tensors: nested tensors, the rows along axis 0.
        num_samples: rows.
        batch_size: rows of a full batch.
        preprocess: the user's function that makes a batch of gathered rows; None if they are one.
        preparation: the same, traced.
    """

    rewindable = True
    draws_seeds = False

    def __init__(
        self,
        inputs: Any,
        *,
        num_samples: int,
        batch_size: int,
        shuffle: bool | str,
        preprocess: Preprocess | None = None,
    ) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.num_batches = math.ceil(num_samples / batch_size)
        self.tensors = keras.tree.map_structure(_to_tensor, inputs)
        static_size = None if num_samples % batch_size else batch_size
        gathered = keras.tree.map_structure(
            lambda t: tf.TensorSpec([static_size, *t.shape[1:]], t.dtype), self.tensors
        )
        self.preparation = trace_preprocess(preprocess, gathered)
        self.element_spec = prepared_spec(self.preparation, gathered)
        self._shuffle = shuffle
        self._orders = RowOrders(num_samples, batch_size, shuffle)

    @property
    def full_batch(self) -> int:
        return self.batch_size

    def batch(self, order: tf.Tensor, index: tf.Tensor, tensors: Any = None, *, full: bool = False) -> Any:
        """Returns batch `index` of a pass: rows gathered by its order, int64[num_samples], and prepared.

        Args:
            order: the pass.
            index: which batch, int64[].
            tensors: stand in for `self.tensors` while a loop is traced that takes them as arguments.
            full: whether the batch is known not to be a smaller last one, and may have a static size.
        """
        size: Any = self.batch_size
        if self.num_samples % self.batch_size and not full:
            total = self.num_samples if tensors is None else tf.shape(order, tf.int64)[0]
            size = tf.minimum(index * self.batch_size + self.batch_size, total)
            size -= index * self.batch_size
        rows = tf.slice(order, [index * self.batch_size], [size])
        source = self.tensors if tensors is None else tensors
        gathered = keras.tree.map_structure(lambda t: tf.gather(t, rows), source)
        if self.preparation is None or full or tf.executing_eagerly():
            return prepare(self.preprocess, gathered)
        return self.preparation(gathered)

    def describe(self) -> str:
        rows = tf.constant(sorted({i * (self.num_samples - 1) // 63 for i in range(64)}), tf.int64)
        digest = hashlib.sha256()
        for tensor in keras.tree.flatten(self.tensors):
            digest.update(repr((tensor.dtype, tensor.shape)).encode())
            digest.update(tf.io.serialize_tensor(tf.gather(tensor, rows)).numpy())
        return (
            f"{self.num_samples} rows in batches of {self.batch_size}, shuffle={self._shuffle}\n"
            f"digest of 64 rows {digest.hexdigest()[:16]}"
        )

    def new_pass(self) -> tf.Tensor:
        self.drawn += 1
        return self._orders[self.drawn - 1]

    def rewind(self, drawn: int) -> None:
        self.drawn = drawn

    def forget(self, drawn: int) -> None:
        self._orders.forget(drawn)


class IteratorFeed(Feed):
    """Anything that Keras can turn into a `tf.data.Dataset`; a pass is an iterator over it.

    Each new iterator draws from the seeds of the user's shuffles, so a pass is repeated by putting those
    seeds back to where they stood at the first pass and making as many iterators again. The first
    iterator's state, taken before it has drawn an element, holds the seeds and no data. Taking it costs a
    few microseconds for each slot of a shuffle buffer, so it is done once, in a thread of its own, while
    the training functions are traced. Where Python makes the data there is no such state, and where the
    pipeline's functions write to variables (a `tf.random.Generator`) it is not in the iterator; nor are the
    seeds of a shuffle that draws them only with its first element, as under another shuffle or a repeat.
    """

    def __init__(self, adapter: keras_data.DataAdapter, preprocess: Preprocess | None = None) -> None:
        super().__init__()
        self._adapter = adapter
        self._dataset = without_autotune(map_batches(preprocess, adapter.get_tf_dataset()))
        self.num_batches = adapter.num_batches
        self.element_spec = self._dataset.element_spec
        self.captured = captured_by(self._dataset)
        self.reads = read_by(self._dataset)
        self._first: Any = None
        self._origin: concurrent.futures.Future[tf.Tensor | None] | None = None

    def prepare(self) -> None:
        """Makes the first iterator and begins to save its seeds; call it before tracing."""
        if self._origin is not None:
            return
        if not self._has_seeds():
            self._origin = concurrent.futures.Future()
            self._origin.set_result(None)
            return
        self._first = iter(self._dataset)
        first = self._first
        self._origin = in_background(lambda: _save_iterator(first), "overlap-seeds")

    def _has_seeds(self) -> bool:
        """Whether the state of a new iterator is all that the passes from it on depend on."""
        if not keras_data.is_tf_dataset_adapter(self._adapter) or not isinstance(
            self._dataset, tf.data.Dataset
        ):
            return False
        return not keeps_state(self._dataset) and not draws_lazily(self._dataset)

    @property
    def rewindable(self) -> bool:
        self.prepare()
        return self._origin is not None and self._origin.result() is not None

    def new_pass(self) -> Any:
        self.prepare()
        self.drawn += 1
        if self._first is None:
            return iter(self._dataset)
        assert self._origin is not None
        self._origin.result()  # an iterator that is being saved must not be advanced
        iterator, self._first = self._first, None
        return iterator

    def rewind(self, drawn: int) -> None:
        if drawn == self.drawn:
            return
        if not self.rewindable:
            raise RuntimeError("this data cannot be rewound; its training must not run ahead of validation")
        assert self._origin is not None
        self._first = iter(self._dataset)
        tf.raw_ops.DeserializeIterator(
            resource_handle=self._first._iterator_resource, serialized=self._origin.result()
        )
        for _ in range(drawn):
            self._first = iter(self._dataset)
        self.drawn = drawn

    def describe(self) -> str:
        return f"{self.num_batches} batches\n{self.element_spec}"

    def begin_epoch(self) -> None:
        self._adapter.on_epoch_begin()

    def end_epoch(self) -> None:
        self._adapter.on_epoch_end()


@dataclass(frozen=True)
class FeedOptions:
    """What `make_feed` needs to know of `fit`'s arguments, and of the trainer's."""

    batch_size: int | None = None
    steps_per_epoch: int | None = None
    shuffle: bool | str = True
    class_weight: dict[int, float] | None = None
    preprocess: Preprocess | None = None


def make_feed(
    x: Any,
    y: Any,
    sample_weight: Any,
    options: FeedOptions,
    *,
    hold_in_memory: Callable[[int], bool],
) -> Feed:
    """Returns the feed for the first arguments of `keras.Model.fit`.

    Args:
        x: as `keras.Model.fit` takes it.
        y: likewise.
        sample_weight: likewise.
        options: likewise.
        hold_in_memory: says whether tensors may be made of arrays that need so many bytes for it.

    Returns:
        An `ArrayFeed` for arrays that may be held, otherwise an `IteratorFeed`.

    Raises:
        ValueError: as Keras, for data that it does not know, empty data or mismatched lengths.
    """
    if x is None:
        raise ValueError(
            "there is no training data: x is None; pass arrays, a tf.data.Dataset, a keras.utils.PyDataset "
            "or a generator of batches"
        )
    adapter = keras_data.adapt(
        x,
        y,
        sample_weight,
        batch_size=options.batch_size,
        steps=options.steps_per_epoch,
        shuffle=options.shuffle,
        class_weight=options.class_weight,
    )
    if not keras_data.is_array_adapter(adapter):
        feed = IteratorFeed(adapter, options.preprocess)
        if feed.num_batches == 0:
            raise ValueError("the training data is empty: its dataset has no batch; pass at least one")
        return feed
    inputs = keras_data.array_inputs(adapter)
    leaves = [leaf for leaf in keras.tree.flatten(inputs) if leaf is not None]
    num_samples = int(leaves[0].shape[0])
    if num_samples == 0:
        raise ValueError("the training data is empty: its arrays have 0 rows; pass at least one")
    if keras_data.are_dense(inputs) and hold_in_memory(sum(copied_bytes(leaf) for leaf in leaves)):
        return ArrayFeed(
            inputs,
            num_samples=num_samples,
            batch_size=adapter.batch_size,
            shuffle=options.shuffle,
            preprocess=options.preprocess,
        )
    return IteratorFeed(adapter, options.preprocess)


def size_bytes(array: Any) -> int:
    """Returns the memory that a tensor's or an array's elements need."""
    if tf.is_tensor(array):
        return int(math.prod(array.shape) * array.dtype.size)
    return int(array.nbytes)


def copied_bytes(array: Any) -> int:
    """Returns the memory that a tensor with an array's content needs beside the array: none if it is lent."""
    return 0 if _is_lent(array) else size_bytes(array)


def _to_tensor(array: Any) -> tf.Tensor:
    return as_tensor(array) if _is_lent(array) else tf.convert_to_tensor(array)


def _is_lent(array: Any) -> bool:
    """Whether TensorFlow may read an array where it lies: fit for it, and nobody can write to it."""
    if type(array) not in (np.ndarray, np.memmap) or tf.config.list_logical_devices("GPU"):
        return False
    base = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return explain(array).zero_copy


def _save_iterator(iterator: Any) -> tf.Tensor | None:
    """Returns the state of a `tf.data` iterator, variant[n], or None if Python takes part in it."""
    resource = iterator._iterator_resource
    refuse, ignore = 2, 1
    try:
        return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=refuse)
    except tf.errors.FailedPreconditionError as error:
        # Random operations are made anew with each iterator and need no state; Python functions have one
        # that nobody can see.
        if "PyFunc" in str(error):
            return None
    except tf.errors.OpError:
        return None
    return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=ignore)
