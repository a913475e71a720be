"""Which arrays TensorFlow may read where they lie, and what memory tensors of the others take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train.zero_copy import as_tensor, explain

__all__ = ["copied_bytes", "lent_or_copied", "size_bytes"]


def size_bytes(array: Any) -> int:
    """Returns the memory that a tensor's or an array's elements need."""
    if tf.is_tensor(array):
        return int(math.prod(array.shape) * array.dtype.size)
    return int(array.nbytes)


def copied_bytes(array: Any) -> int:
    """Returns the memory that a tensor with an array's content needs beside the array: none if it is lent."""
    return 0 if _is_lent(array) else size_bytes(array)


def lent_or_copied(array: Any) -> tf.Tensor:
    """Returns a tensor with an array's content, in the memory of the array where that can be lent."""
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
