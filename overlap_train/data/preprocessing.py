"""A function of the user's that prepares a batch, as a part of the data.

Over arrays it runs inside the compiled loop, behind the gathering of the rows, so that the arrays stay as
small as they are (pixels as uint8); behind a dataset it is one more stage of the pipeline. It is traced on
the training thread and should be a pure function: a random number that it draws is not drawn again after a
rollback. Random augmentation belongs into the model's layers, whose generators are part of a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from overlap_train import _keras

__all__ = ["Preprocess", "map_batches", "prepare", "prepared_spec"]

Preprocess: TypeAlias = Callable[..., Any]
"""Takes and returns the parts of a batch, `x`, `x, y` or `x, y, sample_weight`, as for `Dataset.map`."""


def prepare(preprocess: Preprocess | None, batch: Any) -> Any:
    """Returns what a user's function makes of a batch; the batch itself if there is no function."""
    if preprocess is None:
        return batch
    batch = _keras.without_optionals(batch)
    prepared = preprocess(*batch) if isinstance(batch, tuple) else preprocess(batch)
    if prepared is None or isinstance(prepared, list):
        raise TypeError(
            f"preprocess returned {type(prepared).__name__}; expected x, (x, y) or (x, y, sample_weight), as "
            "for tf.data.Dataset.map"
        )
    return prepared


def prepared_spec(preprocess: Preprocess | None, element_spec: Any) -> Any:
    """Returns the spec of a prepared batch, given that of a batch.

    Raises:
        TypeError: if the function does not return a batch.
    """
    if preprocess is None:
        return element_spec
    function = tf.function(lambda batch: prepare(preprocess, batch), autograph=False)
    outputs = function.get_concrete_function(element_spec).structured_outputs
    return tf.nest.map_structure(lambda t: None if t is None else tf.TensorSpec(t.shape, t.dtype), outputs)


def map_batches(preprocess: Preprocess | None, dataset: Any) -> Any:
    """Returns a dataset of prepared batches; whatever else is iterated over comes back as it is."""
    if preprocess is None:
        return dataset
    return dataset.map(lambda *batch: prepare(preprocess, batch if len(batch) > 1 else batch[0]))
