"""D: from what is given as validation data to the batches that its workers evaluate.

Three kinds, by where the batches are between two validations: in arrays, in memory after a first pass, or
nowhere, to be drawn again each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from overlap_train._data.array_batches import ArrayBatches
from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.fetching_ahead import prepared_batches
from overlap_train._data.given_data import GivenData
from overlap_train._data.memory import size_bytes
from overlap_train._data.pipeline import is_repeatable
from overlap_train._data.preprocessing import Preprocess
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._keras.data import Pipeline

__all__ = ["Batches", "make_batches"]

Batches = ArrayBatches | CachedBatches | StreamedBatches

_LEAST_JOINED = 32


def make_batches(
    given: GivenData,
    *,
    steps: int | None,
    cache_bytes: int,
    preprocess: Preprocess | None = None,
    most_rows: Callable[[Any], int] | None = None,
) -> Batches:
    """Returns the validation set as `keras.Model.evaluate` would batch it."""
    layout = given.layout
    if layout is not None:
        most = most_rows(layout.specs) if most_rows is not None and steps is None else 0
        batch_size = layout.batch_size * _together(layout.batch_size, layout.num_samples, most)
        return ArrayBatches(given, batch_size=batch_size, steps=steps, preprocess=preprocess)
    if given.kept is None:
        given.kept = _drawn(given.pipeline, steps, cache_bytes if given.keeps else 0, preprocess)
    batches: Batches = given.kept
    return batches


def _drawn(
    data: Pipeline, steps: int | None, cache_bytes: int, preprocess: Preprocess | None
) -> CachedBatches | StreamedBatches:
    dataset = prepared_batches(data.dataset, preprocess)
    kept = _kept(dataset, steps, cache_bytes) if data.is_dataset else None
    return StreamedBatches(data, dataset, steps) if kept is None else kept


def _kept(dataset: tf.data.Dataset, steps: int | None, cache_bytes: int) -> CachedBatches | None:
    """Returns the batches if they are the same in each pass and fit into memory, by the size of the first."""
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY and steps is None:
        raise ValueError(
            "the validation dataset never ends; pass validation_steps=... (or steps=... to evaluate), "
            "or limit it with dataset.take(n)"
        )
    count = min(n for n in (cardinality, steps) if n is not None and n > 0) if cardinality > 0 else steps
    if (
        count is None or not cache_bytes or not is_repeatable(dataset)
    ):  # otherwise a pass must not be begun to look at it
        return None
    batches = CachedBatches(dataset, steps)
    first = tf.nest.flatten(batches.first, expand_composites=True)
    fits = count * sum(size_bytes(leaf) for leaf in first if tf.is_tensor(leaf)) <= cache_bytes
    return batches if fits else None


def _together(batch_size: int, num_samples: int, most_rows: int) -> int:
    """Returns how many batches to join; enough are left for any number of workers to share evenly."""
    return max(1, min(most_rows // batch_size, num_samples // batch_size // _LEAST_JOINED))
