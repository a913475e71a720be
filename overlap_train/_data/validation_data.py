"""D: one validation set, from what was given to the batches that its workers evaluate.

Keras takes hold of the validation data when it first validates, behind the training of that epoch, and keeps
what it took for all validations that follow. Until then a callback may change an array, and what Python draws
from a random generator for a validation would be missing in the training. So no row is read and no Python
runs before. Of dense arrays the shapes and types are known, which is enough to trace.

There are three kinds of batches, by where they are between two validations: in arrays, in memory after a
first pass, or nowhere, to be drawn again each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.batches import Preprocess, size_bytes, trace_preprocess
from overlap_train._data.cached_batches import CachedBatches, Fold
from overlap_train._data.pipeline import is_repeatable, prepared_batches
from overlap_train._data.streamed_batches import BatchStream, StreamedBatches
from overlap_train._keras.data import Arrays, Pipeline, warn_out_of_data

__all__ = [
    "ArrayBatches",
    "Batches",
    "Shard",
    "ValidationSource",
    "make_batches",
    "split_batches",
    "warn_if_short",
]


@dataclass(frozen=True)
class ArrayLayout:
    """What dense arrays are, without their rows."""

    specs: Any
    num_samples: int
    batch_size: int


class ValidationSource:
    """One validation set. On the training thread, but for what has been read."""

    def __init__(
        self,
        recognize: Callable[[], Arrays | Pipeline],
        *,
        by_python: bool = False,
        now: bool = True,
        device: str | None = None,
        keeps: bool = True,
    ) -> None:
        self.keeps = keeps  # whether its batches may be kept, which draws the first one before it is due
        self._recognize = recognize
        self._device = device
        self._tensors: Any = None
        self._pipeline: Pipeline | None = None
        self.layout: ArrayLayout | None = None  # of dense arrays; None for other data
        # What draws its batches, once it has been made: another one would begin a generator anew.
        self.batches: Any = None
        self.left_to_keras = False  # whether Keras reads the arrays itself when it validates
        self.is_read = False
        if now:
            self._take(recognize())
        elif not by_python:
            self._look(recognize())

    @property
    def waits(self) -> bool:
        """Whether nothing is known of its batches before it is read."""
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
        known = self.layout
        self._take(self._recognize())
        return known is not None and self.layout == known

    def blank(self) -> Any:
        """Returns tensors as the arrays will give, nested, with no rows."""
        assert self.layout is not None
        with tf.device(self._device):
            return keras.tree.map_structure(
                lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), self.layout.specs
            )

    def reopen(self) -> None:
        """Lets batches be drawn again after a suite that shared them was closed."""
        if hasattr(self.batches, "reopen"):
            self.batches.reopen()

    def close(self) -> None:
        """Ends what makes its batches. Idempotent."""
        if self._pipeline is not None:
            self._pipeline.close()
        if hasattr(self.batches, "end"):
            self.batches.end()

    def _look(self, data: Arrays | Pipeline) -> None:
        if isinstance(data, Pipeline):  # whose dataset the user made
            self._take(data)
        elif data.dense:
            self.layout = _layout(data)

    def _take(self, data: Arrays | Pipeline) -> None:
        self.is_read, self.layout = True, None
        if isinstance(data, Pipeline):
            self._pipeline = data
        elif data.dense:
            self.layout = _layout(data)
            with tf.device(self._device):
                self._tensors = keras.tree.map_structure(tf.convert_to_tensor, data.inputs)
        else:
            self._pipeline = data.pipeline


def _layout(arrays: Arrays) -> ArrayLayout:
    def spec(array: Any) -> tf.TensorSpec:
        row = tf.convert_to_tensor(array[:1])  # texts have a type of their own in NumPy
        return tf.TensorSpec([arrays.num_samples, *row.shape[1:]], row.dtype)

    return ArrayLayout(keras.tree.map_structure(spec, arrays.inputs), arrays.num_samples, arrays.batch_size)


@dataclass(frozen=True)
class ArrayFold(Fold):
    """Through slices of arrays."""

    num_samples: int
    batch_size: int

    def batch(self, held: Any, index: Any) -> Any:
        """Returns a slice of rows."""
        row = index * self.batch_size
        end = tf.minimum(row + self.batch_size, self.num_samples)
        rows = keras.tree.map_structure(lambda t: t[row:end], held)
        if self.num_samples % self.batch_size:
            return rows
        # Known where Keras would know it: see ArrayLoop.
        return keras.tree.map_structure(lambda t: tf.ensure_shape(t, [self.batch_size, *t.shape[1:]]), rows)


class ArrayBatches:
    """Validation arrays held as tensors; a batch is a slice of rows, prepared by the user's function."""

    def __init__(
        self,
        given: ValidationSource,
        *,
        batch_size: int,
        steps: int | None,
        preprocess: Preprocess | None = None,
    ) -> None:
        assert given.layout is not None
        self._given, self._specs = given, given.layout.specs
        self.is_joined = batch_size != given.layout.batch_size
        num_samples = given.layout.num_samples
        static_size = None if num_samples % batch_size else batch_size
        self.raw_spec = keras.tree.map_structure(
            lambda t: tf.TensorSpec([static_size, *t.shape[1:]], t.dtype), self._specs
        )
        self.preparation, self.element_spec = trace_preprocess(preprocess, self.raw_spec)
        self._num_samples = num_samples
        self._batch_size = batch_size
        available = math.ceil(num_samples / batch_size)
        self.num_batches = min(steps, available) if steps else available

    @property
    def tensors(self) -> Any:
        """Nested tensors, the rows along axis 0, as they are when this is first asked for."""
        return self._given.tensors

    @property
    def first_rows(self) -> int:
        """Rows of the first batch."""
        return min(self._batch_size, self._num_samples)

    @property
    def expected(self) -> int:
        """Batches of a validation."""
        return self.num_batches

    @property
    def last_count(self) -> int:
        """Batches that the last validation had."""
        return self.num_batches

    @property
    def held(self) -> Any:
        """What `fold` reads."""
        return self.tensors

    def held_on(self, device: str | None) -> Any:
        """Returns the same on another device, so that it is not copied there by each evaluation."""
        if device is None:
            return self.tensors
        with tf.device(device):
            return keras.tree.map_structure(tf.identity, self.tensors)

    @property
    def held_spec(self) -> Any:
        """Specs of `held`, for any number of rows."""
        return keras.tree.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), self._specs)

    @property
    def blank(self) -> Any:
        """What stands in for `held` where no batch is taken from it."""
        return self._given.blank()

    def stream(self) -> BatchStream:
        """Returns the slices one by one."""
        size = self._batch_size
        rows = range(0, min(self.num_batches * size, self._num_samples), size)
        slices = (self._rows(row) for row in rows)
        return BatchStream(lambda _: slices, None)

    def _rows(self, first: int) -> Any:
        def take(tensor: tf.Tensor) -> tf.Tensor:
            with tf.device(tensor.device):  # or all rows would go to where the batch is wanted
                return tensor[first : first + self._batch_size]

        return keras.tree.map_structure(take, self.tensors)

    @property
    def fold(self) -> ArrayFold:
        """Goes through the slices inside a compiled function."""
        return ArrayFold(self._num_samples, self._batch_size)


Batches = ArrayBatches | CachedBatches | StreamedBatches

_LEAST_JOINED = 32


def make_batches(
    given: ValidationSource,
    *,
    steps: int | None,
    cache_bytes: int,
    preprocess: Preprocess | None = None,
    most_rows: Callable[[Any], int] | None = None,
) -> Batches:
    """Returns the validation set as `keras.Model.evaluate` would batch it."""
    layout = given.layout
    if layout is not None:
        most = most_rows(layout.specs) if most_rows is not None and steps is None else 0
        batch_size = layout.batch_size * _together(layout.batch_size, layout.num_samples, most)
        return ArrayBatches(given, batch_size=batch_size, steps=steps, preprocess=preprocess)
    if given.batches is None:
        given.batches = _batches_of(given.pipeline, steps, cache_bytes if given.keeps else 0, preprocess)
    batches: Batches = given.batches
    return batches


def _batches_of(
    data: Pipeline, steps: int | None, cache_bytes: int, preprocess: Preprocess | None
) -> CachedBatches | StreamedBatches:
    dataset = prepared_batches(data.dataset, preprocess)
    cached = _cached(dataset, steps, cache_bytes) if data.is_dataset else None
    return StreamedBatches(data, dataset, steps) if cached is None else cached


def _cached(dataset: tf.data.Dataset, steps: int | None, cache_bytes: int) -> CachedBatches | None:
    """Returns the batches if they are the same in each pass and fit into memory, by the size of the first."""
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY and steps is None:
        raise ValueError(
            "the validation dataset never ends; pass validation_steps=... (or steps=... to evaluate), "
            "or limit it with dataset.take(n)"
        )
    count = min(n for n in (cardinality, steps) if n is not None and n > 0) if cardinality > 0 else steps
    # Where they are not kept, no pass may be begun to look at one.
    if count is None or not cache_bytes or not is_repeatable(dataset):
        return None
    batches = CachedBatches(dataset, steps)
    first = tf.nest.flatten(batches.first, expand_composites=True)
    fits = count * sum(size_bytes(leaf) for leaf in first if tf.is_tensor(leaf)) <= cache_bytes
    return batches if fits else None


def _together(batch_size: int, num_samples: int, most_rows: int) -> int:
    """Returns how many batches to join; enough are left for any number of workers to share evenly."""
    return max(1, min(most_rows // batch_size, num_samples // batch_size // _LEAST_JOINED))


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


def warn_if_short(count: int, least: int | None) -> None:
    """Warns, as Keras does, that a validation had fewer batches than were asked for, or none at all."""
    if count < (least or 1):
        warn_out_of_data(asked=least is not None)
