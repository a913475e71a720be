"""Whether two tensors hold the same bits. Any thread."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def same_bits(a: tf.Tensor, b: tf.Tensor) -> bool:
    """Whether two tensors of the same dtype have the same shape and hold the same bits."""
    return bool(a.shape == b.shape) and (_share_a_buffer(a, b) or bool(_equal_bits(a, b)))


def _share_a_buffer(a: tf.Tensor, b: tf.Tensor) -> bool:
    """Whether two tensors are known to lie at the same place in the host's memory."""
    if a is b:
        return True
    if "CPU" not in a.device or "CPU" not in b.device:
        return False
    try:
        addresses = [np.asarray(memoryview(t)).__array_interface__["data"][0] for t in (a, b)]
    except (TypeError, ValueError, tf.errors.OpError):  # a dtype that NumPy has no name for
        return False
    return bool(addresses[0] == addresses[1])


def _equal_bits(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Whether all bits are the same: NaN equals itself, and -0.0 differs from 0.0."""
    if a.dtype.is_floating or a.dtype.is_complex:
        bits = {1: tf.int8, 2: tf.int16, 4: tf.int32}.get(a.dtype.size, tf.int64)
        a, b = tf.bitcast(a, bits), tf.bitcast(b, bits)
    return tf.reduce_all(tf.equal(a, b))
