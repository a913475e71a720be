"""D: validation arrays, held as tensors whose slices are batches once they have been read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.fold import Fold
from overlap_train._data.given_data import GivenData
from overlap_train._data.preprocessing import Preprocess, trace_preprocess
from overlap_train._data.streamed_batches import BatchStream

__all__ = ["ArrayBatches"]


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
        given: GivenData,
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

    def forget(self) -> None:
        """Lets go of arrays that were read before their time, so that they are read again."""
        self._given.forget()

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
