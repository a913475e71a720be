"""D: one validation set, from the user's data to the batches that its workers evaluate.

Keras first reads the validation data when it first validates, after the training of that epoch, and keeps
what it read for all later validations. Until then a callback may change an array, and what Python draws from
a random generator for a validation would be missing in the training. So no row is read and no Python runs
before. The shapes and types of dense arrays are known, which is enough to trace.

There are three kinds of batches, by where they are between two validations: in arrays, in memory after a
first pass, or nowhere, to be drawn again each time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.batches import batch_spec, size_bytes, specs_of_rows, trace_preprocess
from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.pipeline import is_repeatable, prepared_batches
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._keras.data import Arrays, Pipeline
from overlap_train._support.fit_arguments import Preprocess


@dataclass(frozen=True)
class ArrayLayout:
    """The shapes and types of dense arrays, without their rows."""

    specs: Any
    num_samples: int
    batch_size: int


@dataclass(eq=False)
class ValidationSource:
    """One validation set. On the training thread, except for what has been read."""

    _recognize: Callable[[], Arrays | Pipeline]
    _: KW_ONLY
    by_python: InitVar[bool] = False
    now: InitVar[bool] = True
    device: str | None = None
    keeps: bool = True  # whether its batches may be kept, which draws the first one before it is due

    def __post_init__(self, by_python: bool, now: bool) -> None:
        self._tensors: Any = None
        self._pipeline: Pipeline | None = None
        self.layout: ArrayLayout | None = None  # of dense arrays; None for other data
        self.batches: Any = None  # made once: others would begin a generator anew
        self.left_to_keras = False  # whether Keras reads the arrays itself when it validates
        self.is_read = False
        if now or not by_python:
            data = self._recognize()
            if now or isinstance(data, Pipeline):
                self._take(data)
            elif data.dense:
                self.layout = _layout(data)

    @property
    def waits(self) -> bool:
        """Whether its batches are unknown until it is read."""
        return self.layout is None and self._pipeline is None

    @property
    def pipeline(self) -> Pipeline:
        """What draws batches that are not slices of dense arrays; not of data that `waits`."""
        assert self._pipeline is not None
        return self._pipeline

    @property
    def tensors(self) -> Any:
        """The arrays as they are when this is first asked for, nested."""
        if not self.read():
            raise ValueError("the validation arrays have other shapes or types than when fit began")
        return self._tensors

    def read(self) -> bool:
        """Reads the data, once; returns whether it has the layout that was known before."""
        if self.is_read:
            return True
        layout = self.layout
        self._take(self._recognize())
        return layout is not None and self.layout == layout

    def close(self) -> None:
        """Ends what makes its batches. Idempotent."""
        if self._pipeline is not None:
            self._pipeline.close()
        if hasattr(self.batches, "end"):
            self.batches.end()

    def _take(self, data: Arrays | Pipeline) -> None:
        self.is_read, self.layout = True, None
        if isinstance(data, Pipeline):
            self._pipeline = data
        elif data.dense:
            self.layout = _layout(data)
            with tf.device(self.device):
                self._tensors = keras.tree.map_structure(tf.convert_to_tensor, data.inputs)
        else:
            self._pipeline = data.pipeline


def _layout(arrays: Arrays) -> ArrayLayout:
    def spec(array: Any) -> tf.TensorSpec:
        row = tf.convert_to_tensor(array[:1])  # texts have a type of their own in NumPy
        return tf.TensorSpec([arrays.num_samples, *row.shape[1:]], row.dtype)

    return ArrayLayout(keras.tree.map_structure(spec, arrays.inputs), arrays.num_samples, arrays.batch_size)


@dataclass(frozen=True)
class ArrayFold:
    """Takes batches from arrays. Holds no data, and serves arrays of any number of rows."""

    batch_size: int
    all_full: bool  # whether the last batch has as many rows, too

    def batch(self, held: Any, index: Any) -> Any:
        """Returns a slice of rows, of a known number where Keras would know it: see ArrayLoop."""
        row = index * self.batch_size

        def take(tensor: tf.Tensor) -> tf.Tensor:
            with tf.device(tensor.device):  # its own: all rows would be copied to another
                if not self.all_full:
                    return tensor[row : row + self.batch_size]
                begin = [row, *[0] * (tensor.shape.rank - 1)]
                return tf.slice(tensor, begin, [self.batch_size, *tensor.shape[1:]])

        return keras.tree.map_structure(take, held)


class ArrayBatches:
    """Validation arrays held as tensors; a batch is a slice of rows, prepared by the user's function."""

    finds_end = False

    def __init__(
        self,
        source: ValidationSource,
        *,
        steps: int | None,
        preprocess: Preprocess | None = None,
    ) -> None:
        layout = source.layout
        assert layout is not None
        batch_size = layout.batch_size
        self._source = source
        self.raw_spec = batch_spec(layout.specs, layout.num_samples, batch_size)
        self.preparation, self.element_spec = trace_preprocess(preprocess, self.raw_spec)
        self.data_spec = specs_of_rows(layout.specs, None)  # for any number of rows
        self.fold = ArrayFold(batch_size, all_full=layout.num_samples % batch_size == 0)
        self.num_samples, self.batch_size = layout.num_samples, batch_size
        self.first_rows = min(batch_size, layout.num_samples)
        available = math.ceil(layout.num_samples / batch_size)
        self.num_batches = self.last_count = min(steps, available) if steps else available

    @property
    def held(self) -> Any:
        """What `fold` reads: nested tensors, the rows along axis 0, as they are when first asked for."""
        return self._source.tensors

    def data_on(self, device: str | None) -> Any:
        """Returns `held` on another device, so that it is not copied there by each evaluation."""
        if device is None:
            return self.held
        with tf.device(device):
            return keras.tree.map_structure(tf.identity, self.held)

    @property
    def blank(self) -> Any:
        """A stand-in for `held` where no batch is taken from it."""
        with tf.device(self._source.device):
            return keras.tree.map_structure(lambda s: tf.zeros([0, *s.shape[1:]], s.dtype), self.data_spec)

    @property
    def blank_rows(self) -> Any:
        """A stand-in with as many rows, in memory that nobody touches."""
        return keras.tree.map_structure(
            lambda s: tf.raw_ops.Empty(shape=[self.num_samples, *s.shape[1:]], dtype=s.dtype), self.data_spec
        )


Batches = ArrayBatches | CachedBatches | StreamedBatches


def make_batches(
    source: ValidationSource,
    *,
    steps: int | None,
    cache_bytes: int,
    preprocess: Preprocess | None = None,
) -> Batches:
    """Returns the validation set as `keras.Model.evaluate` would batch it."""
    if source.layout is not None:
        return ArrayBatches(source, steps=steps, preprocess=preprocess)
    if source.batches is None:
        data, cache_bytes = source.pipeline, cache_bytes if source.keeps else 0
        dataset = prepared_batches(data.dataset, preprocess)
        cached = _cached(dataset, steps, cache_bytes) if data.is_dataset else None
        source.batches = cached or StreamedBatches(data, dataset, steps)
    batches: Batches = source.batches
    return batches


def _cached(dataset: tf.data.Dataset, steps: int | None, cache_bytes: int) -> CachedBatches | None:
    """Returns the batches if they are the same in each pass and fit into memory, by the size of the first."""
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY and steps is None:
        raise ValueError(
            "the validation dataset never ends; pass validation_steps=... (or steps=... to evaluate), "
            "or limit it with dataset.take(n)"
        )
    count = min(n for n in (cardinality, steps) if n is not None and n > 0) if cardinality > 0 else steps
    # Without a cache no pass may begin just to look at a batch.
    if count is None or not cache_bytes or not is_repeatable(dataset):
        return None
    batches = CachedBatches(dataset, steps)
    first = tf.nest.flatten(batches.first, expand_composites=True)
    fits = count * sum(size_bytes(leaf) for leaf in first if tf.is_tensor(leaf)) <= cache_bytes
    return batches if fits else None


@dataclass(frozen=True, slots=True)
class Shard:
    """A worker's part: the batches from `first` up to, not including, `stop`."""

    first: int
    stop: int


def split_batches(num_batches: int, parts: int) -> list[Shard]:
    """Divides batches into at most `parts` runs whose lengths differ by one at most; none is empty."""
    parts = min(parts, num_batches)
    if parts == 0:
        return []
    bounds = [num_batches * i // parts for i in range(parts + 1)]
    return [Shard(*pair) for pair in itertools.pairwise(bounds)]
