"""D: one validation set as it was given, and when it is read.

Keras takes hold of the validation data when it first validates, behind the training of that epoch, and keeps
what it took for all validations that follow. Until then somebody may change an array, and what Python draws
from a random generator for a validation would be missing in the training. So no row is read and no Python
runs before. Of dense arrays the shapes and types are known, which is enough to trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras.data import Arrays, Pipeline

__all__ = ["ArrayLayout", "GivenData"]


@dataclass(frozen=True)
class ArrayLayout:
    """What dense arrays are, without their rows."""

    specs: Any
    num_samples: int
    batch_size: int


class GivenData:
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
        # what draws its batches, once it has been made: another one would begin a generator anew
        # What draws its batches, once it has been made: another one would begin a generator anew.
        self.kept: Any = None
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
        """Reads the data if that has not been done; returns whether it is what was known of it."""
        if self.is_read:
            return True
        known = self.layout
        self._take(self._recognize())
        return known is not None and self.layout == known

    def forget(self) -> None:
        """Lets go of arrays that were read before their time, so that they are read again."""
        if self.layout is not None:
            self._tensors, self.is_read = None, False

    def blank(self) -> Any:
        """Returns tensors as the arrays will give, nested, with no rows."""
        assert self.layout is not None
        with tf.device(self._device):
            return keras.tree.map_structure(
                lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), self.layout.specs
            )

    def reopen(self) -> None:
        """Lets batches be drawn again after a suite that shared them was closed."""
        if hasattr(self.kept, "reopen"):
            self.kept.reopen()

    def close(self) -> None:
        """Ends what makes its batches. Idempotent."""
        if self._pipeline is not None:
            self._pipeline.close()
        if hasattr(self.kept, "end"):
            self.kept.end()

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
