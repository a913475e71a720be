"""Batches of the user's Python, which their owner may fill anew after they have been handed over.

TensorFlow copies the memory of an array that a generator gives, unless its address suits TensorFlow's
alignment: then it borrows the memory. Only such an array is copied here, before the generator goes on and on
the thread that draws from it, so that each array is copied once, whatever its address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

__all__ = ["LentBatches"]

# TensorFlow borrows at multiples of 64 bytes, and of 32 where it has been built for AVX alone.
_BORROWED = 32
_ALIGNED = 64


class LentBatches:
    """What makes batches, and whether they are to be copied where TensorFlow would borrow them.

    `copies` holds from the next batch on; set it before anything is drawn.
    """

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make
        self.copies = False

    def iterate(self) -> Iterator[Any]:
        """Yield the batches. On the thread that draws."""
        for batch in self._make():
            yield keras.tree.map_structure(_owned, batch) if self.copies else batch


def _owned(array: Any) -> Any:
    if array is None or isinstance(array, (tf.Tensor, int, float)):
        return array
    if not isinstance(array, np.ndarray):
        array = np.asarray(array)  # a tensor of another library's, whose memory NumPy borrows
    address = array.__array_interface__["data"][0]
    if array.dtype.hasobject or address % _BORROWED or not array.flags.c_contiguous:
        return array
    copy = _aligned(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an array whose memory TensorFlow borrows."""
    size_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size_bytes + _ALIGNED, np.uint8)
    begin = -raw.__array_interface__["data"][0] % _ALIGNED
    return raw[begin : begin + size_bytes].view(dtype).reshape(shape)
