"""A function of the user's that prepares a batch, as a part of the data.

Over arrays it runs inside the compiled loop, behind the gathering of the rows, so that the arrays stay as
small as they are (pixels as uint8); behind a dataset it is one more stage of the pipeline. It is traced on
the training thread. What it reads or writes is found on its trace like that of a step: a variable is part of
the snapshots, and what no snapshot can hold, such as `tf.random`, is validated in step with the training.
"""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from overlap_train._inspection.traced import TracedFunction
from overlap_train._keras import data as keras_data
from overlap_train._support.fit_arguments import Preprocess

__all__ = ["Preprocess", "prepare", "trace_preprocess"]


def prepare(preprocess: Preprocess | None, batch: Any) -> Any:
    """Returns what a user's function makes of a batch; the batch itself if there is no function."""
    if preprocess is None:
        return batch
    batch = keras_data.without_optionals(batch)
    parts = batch if isinstance(batch, tuple) else (batch,)
    _require_room(preprocess, parts)
    prepared = preprocess(*parts)
    if prepared is None or isinstance(prepared, list):
        raise TypeError(
            f"preprocess returned {type(prepared).__name__}; expected x, (x, y) or (x, y, sample_weight), as "
            "for tf.data.Dataset.map"
        )
    return prepared


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _require_room(preprocess: Preprocess, parts: tuple[Any, ...]) -> None:
    """Raises a TypeError where a function does not take the parts of a batch; no part of the graph."""
    try:
        signature = inspect.signature(preprocess)
    except (TypeError, ValueError):  # it does not tell
        return
    try:
        signature.bind(*parts)
    except TypeError:
        given = ", ".join(("x", "y", "sample_weight")[: len(parts)])
        raise TypeError(
            f"preprocess is called with ({given}), as a function for tf.data.Dataset.map is, and takes "
            f"{signature}; wrap it, as by lambda x, y: (preprocess(x), y)"
        ) from None


def trace_preprocess(preprocess: Preprocess | None, raw_spec: Any) -> tuple[TracedFunction | None, Any]:
    """Traces a user's function, if any, and returns it with the nested specs of a prepared batch."""
    if preprocess is None:
        return None, raw_spec
    traced = TracedFunction(lambda batch: prepare(preprocess, batch), raw_spec)
    spec = tf.nest.map_structure(
        lambda t: None if t is None else tf.TensorSpec(t.shape, t.dtype), traced.outputs
    )
    return traced, spec
