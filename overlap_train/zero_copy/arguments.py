"""Checks of what a user passes for a shape, a dtype or a device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import DTypeLike

from overlap_train._support.arguments import plain_text, require_integer, shown
from overlap_train.zero_copy.tensors import SHARED_DTYPES

__all__ = ["any_dtype", "checked_device", "checked_dtype", "checked_shape"]

_LARGEST = 1 << 62  # bytes; beyond it neither NumPy nor TensorFlow can count
_WIDEST = 16  # bytes of a complex128
_MOST_DIMENSIONS = 32  # NumPy's limit before version 2


def checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple, or raise TypeError or ValueError."""
    expected = "an integer or a sequence of them"
    if isinstance(shape, Sequence) and not isinstance(shape, (str, bytes)):
        some = itertools.islice(shape, _MOST_DIMENSIONS + 1)  # one too many are enough to refuse them
        checked = tuple(require_integer("shape", dimension, expected=expected) for dimension in some)
    else:
        checked = (require_integer("shape", shape, expected=expected),)
    if any(dimension < 0 for dimension in checked):
        raise ValueError(f"shape must not have a negative dimension, got {shown(checked)}")
    if len(checked) > _MOST_DIMENSIONS:
        raise ValueError(f"shape must have at most {_MOST_DIMENSIONS} dimensions, got {shown(shape)}")
    if math.prod(checked) * _WIDEST > _LARGEST:
        raise ValueError(f"shape {shown(checked)} has more bytes than can be counted")
    return checked


def checked_dtype(dtype: DTypeLike | tf.DType) -> np.dtype[Any]:
    """Return the dtype of a buffer, or raise TypeError for one that cannot be shared."""
    checked = any_dtype(dtype)
    if checked not in SHARED_DTYPES:
        raise TypeError(f"dtype: a buffer holds one of {_names()} in native byte order, got {checked!r}")
    return checked


def any_dtype(dtype: DTypeLike | tf.DType) -> np.dtype[Any]:
    """Return what NumPy makes of a dtype; raises TypeError where that is nothing."""
    try:
        return np.dtype(dtype.as_numpy_dtype if isinstance(dtype, tf.DType) else dtype)
    except Exception as error:
        raise TypeError(f"dtype must be one that NumPy knows, got {shown(dtype)}") from error


def checked_device(device: str) -> int | None:
    """Return the number of a GPU, or None for the CPU."""
    if not isinstance(device, str):
        raise TypeError(f"device must be a name such as 'CPU:0', got {shown(device)}")
    kind, _, number = plain_text(device).upper().rpartition("/DEVICE:")[2].lstrip("/").partition(":")
    if kind == "CPU" and number in ("", "0"):
        return None
    if kind == "GPU" and (number == "" or (number.isascii() and number.isdigit())):
        return int(number or 0)
    raise ValueError(f'device must be "CPU:0" or a GPU such as "GPU:0", got {shown(device)}')


def _names() -> str:
    return ", ".join(sorted(dtype.name for dtype in SHARED_DTYPES))
