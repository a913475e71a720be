"""How a batch is drawn and prepared, in and outside compiled code, and what memory arrays and tensors take.

The user's `preprocess` prepares a batch. Over arrays it runs inside the compiled loop, after the rows have
been gathered, so that the arrays stay as small as they are (pixels as uint8); over a dataset it is one more
stage of the pipeline. It is traced on the training thread. Its trace shows what it reads and writes, as the
trace of a step does: a variable becomes part of the snapshots, and what no snapshot can hold, such as
`tf.random`, means validating in step with the training.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.lent import is_lent
from overlap_train._inspection.traced import TracedFunction
from overlap_train._keras import data as keras_data
from overlap_train._support.fit_arguments import Preprocess
from overlap_train.zero_copy import as_tensor


def size_bytes(array: Any) -> int:
    """Returns the memory that a tensor's or an array's elements need."""
    if tf.is_tensor(array):
        return int(math.prod(array.shape) * array.dtype.size)
    return int(array.nbytes)


def copied_bytes(array: Any) -> int:
    """Returns how much more memory a tensor with an array's content needs: none if the array is lent."""
    return 0 if is_lent(array) else size_bytes(array)


def lent_or_copied(array: Any) -> tf.Tensor:
    """Returns a tensor with an array's content, in the memory of the array where that can be lent."""
    return as_tensor(array) if is_lent(array) else tf.convert_to_tensor(array)


def prepare(preprocess: Preprocess | None, batch: Any) -> Any:
    """Returns a batch as the user's function prepares it; the batch itself if there is no function."""
    if preprocess is None:
        return batch
    batch = keras_data.without_optionals(batch)
    parts = batch if isinstance(batch, tuple) else (batch,)
    prepared = preprocess(*parts)
    if prepared is None or isinstance(prepared, list):
        raise TypeError(
            f"preprocess returned {type(prepared).__name__}; expected x, (x, y) or (x, y, sample_weight), as "
            "for tf.data.Dataset.map"
        )
    return prepared


def batch_spec(arrays: Any, num_samples: int, batch_size: int) -> Any:
    """Returns the nested specs of a batch of arrays, whose size is None if the last one is smaller."""
    return specs_of_rows(arrays, None if num_samples % batch_size else batch_size)


def specs_of_rows(arrays: Any, rows: int | None) -> Any:
    """Returns the nested specs of as many rows of arrays, None of any number."""
    return keras.tree.map_structure(lambda t: tf.TensorSpec([rows, *t.shape[1:]], t.dtype), arrays)


def trace_preprocess(preprocess: Preprocess | None, raw_spec: Any) -> tuple[TracedFunction | None, Any]:
    """Traces a user's function, if any, and returns it with the nested specs of a prepared batch."""
    if preprocess is None:
        return None, raw_spec
    traced = TracedFunction(lambda batch: prepare(preprocess, batch), raw_spec)
    spec = tf.nest.map_structure(
        lambda t: None if t is None else tf.TensorSpec(t.shape, t.dtype), traced.outputs
    )
    return traced, spec
