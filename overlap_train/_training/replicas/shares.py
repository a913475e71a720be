"""The rows of a batch that are one replica's, and what they make of outputs and gradients of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

__all__ = ["Share", "add_shared", "added", "number_type", "rows_between"]


class Share:
    """A replica's rows of the inputs; at least one, because not every model takes none."""

    def __init__(self, x: Any, rows: Any, begin: Any, size: Any) -> None:
        self.rows, self.begin, self.size = rows, begin, size
        if isinstance(rows, int):
            self.start, self.stop = min(begin, rows - 1), max(begin + size, min(begin, rows - 1) + 1)
        else:
            self.start = tf.minimum(begin, rows - 1)
            self.stop = tf.maximum(begin + size, self.start + 1)
        self.x = rows_between(x, self.start, self.stop)

    def padded(self, output: tf.Tensor, most_rows: Any) -> tf.Tensor:
        """Return this share's rows of an output at their place among zeros, `most_rows` in all."""
        around = [[self.begin, most_rows - self.begin - self.size]] + [[0, 0]] * (output.shape.rank - 1)
        padded = tf.pad(output[: self.size], around)
        padded.set_shape([most_rows if isinstance(most_rows, int) else None, *output.shape[1:]])
        return padded

    def seed(self, gradient: Any) -> tf.Tensor:
        """Return this share's rows of a gradient by an output, zero for the row that counts nothing."""
        own = tf.convert_to_tensor(gradient)[self.start : self.stop]
        if isinstance(self.size, int) and self.size > 0:
            return own
        return tf.where(self.size > 0, own, tf.zeros_like(own))

    def weight(self, dtype: tf.DType) -> tf.Tensor:
        """Return which part of the batch's rows are in this share."""
        return tf.cast(self.size, dtype) / tf.cast(self.rows, dtype)


def number_type(dtype: tf.DType) -> tf.DType:
    """Return the type in which values of a type are added over hosts; adding zeros changes none of them."""
    return dtype if dtype.is_floating else tf.float64


def add_shared(gradients: tuple[Any, Any], count: int) -> Any:
    """Add a replica's gradient to its part of the one that all replicas have alike."""
    own, direct = gradients
    if direct is None:
        return own
    part = tf.convert_to_tensor(direct) / tf.cast(count, direct.dtype)
    return part if own is None else tf.convert_to_tensor(own) + part


def added(parts: Sequence[Any]) -> Any:
    """Add the replicas' parts of one gradient; sparse ones stand one behind the other, as on one device."""
    if not all(isinstance(part, tf.IndexedSlices) for part in parts):
        return tf.add_n([tf.convert_to_tensor(part) for part in parts])
    values = tf.concat([part.values for part in parts], axis=0)
    indices = tf.concat([part.indices for part in parts], axis=0)
    return tf.IndexedSlices(values, indices, parts[0].dense_shape)


def rows_between(structure: Any, begin: Any, end: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[begin:end], structure)
