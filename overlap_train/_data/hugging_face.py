"""What Python does in a pipeline that Hugging Face's `Dataset.to_tf_dataset` has made.

In one process it only looks rows up by their number; with `num_workers` it also shuffles the numbers, by
NumPy's global generator, as a pass begins. Both hold as long as no function of the user's takes part: one
that collates, or one that the dataset's format calls (`set_transform`). Nothing here imports `datasets`.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from overlap_train._keras.data import hugging_face_kind

__all__ = ["is_lookup", "makes_passes_alike"]

_MODULE = "datasets.utils.tf_utils"
# Functions and classes whose batches follow from the rows alone.
_COLLATORS = (
    (_MODULE, "minimal_tf_collate_fn"),
    (_MODULE, "minimal_tf_collate_fn_with_renaming"),
    ("transformers.data.data_collator", "DefaultDataCollator"),
    ("transformers.data.data_collator", "DataCollatorWithPadding"),
)


def is_lookup(function: Any) -> bool:
    """Whether a function looks rows up by their number, and does nothing else."""
    if not isinstance(function, functools.partial) or _name(function.func) != (_MODULE, "np_get_batch"):
        return False
    return _is_plain(function.keywords.get("dataset"), function.keywords.get("collate_fn"))


def makes_passes_alike(function: Any) -> bool:
    """Whether a function is that of a generator which processes of Hugging Face's feed."""
    source: Any = getattr(_state_of(function), "_generator", None)
    if _name(type(source)) != (_MODULE, "NumpyMultiprocessingGenerator"):
        return False
    return _is_plain(source.dataset, source.collate_fn)


def _state_of(function: Any) -> Any:
    """Returns what one of the functions of `tf.data.Dataset.from_generator` works on."""
    if inspect.ismethod(function):
        return function.__self__
    try:
        return inspect.getclosurevars(function).nonlocals.get("generator_state")
    except TypeError:
        return None


def _is_plain(dataset: Any, collate: Any) -> bool:
    named = collate if inspect.isfunction(collate) else type(collate)
    plain = hugging_face_kind(dataset) == "Dataset" and dataset.format["type"] != "custom"
    return plain and _name(named) in _COLLATORS


def _name(named: Any) -> tuple[str, str]:
    return getattr(named, "__module__", ""), getattr(named, "__name__", "")
