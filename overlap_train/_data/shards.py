"""D: the validation set, divided among the workers at batch boundaries.

Three kinds, by where the batches are between two validations: in arrays, in memory after a first pass
(`data/kept.py`), or nowhere, to be drawn again each time (`data/streamed.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.kept import ArrayBatches, CachedBatches
from overlap_train._data.pipeline import read_by, reorders
from overlap_train._data.preprocessing import Preprocess, map_batches
from overlap_train._data.sources import size_bytes
from overlap_train._data.streamed import StreamedBatches
from overlap_train._keras import data as keras_data

__all__ = ["Batches", "Shard", "make_batches", "split_batches", "warn_if_short"]

Batches = ArrayBatches | CachedBatches | StreamedBatches

_LEAST_JOINED = 32


@dataclass(frozen=True, slots=True)
class Shard:
    """A worker's part: the batches from `first` up to, not including, `stop`."""

    index: int
    first: int
    stop: int


def split_batches(num_batches: int, parts: int) -> list[Shard]:
    """Divides batches into at most `parts` runs whose lengths differ by one at most; none is empty."""
    parts = min(parts, num_batches)
    if parts == 0:
        return []
    bounds = [num_batches * i // parts for i in range(parts + 1)]
    return [Shard(i, bounds[i], bounds[i + 1]) for i in range(parts)]


def warn_if_short(count: int, steps: int | None) -> None:
    """Warns, as Keras does, that a validation had fewer batches than were asked for."""
    if steps is not None and count < steps:
        warnings.warn(
            f"the validation data ran out after {count} batches, and validation_steps is {steps}; make sure "
            "that it holds as many, as with `.repeat()`",
            UserWarning,
            stacklevel=3,
        )


def make_batches(
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    batch_size: int | None,
    steps: int | None,
    cache_bytes: int,
    preprocess: Preprocess | None = None,
    most_rows: Callable[[Any], int] | None = None,
    device: str | None = None,
) -> Batches:
    """Returns the validation set as `keras.Model.evaluate` would batch it.

    Args:
        x: as `keras.Model.evaluate` takes it.
        y: likewise.
        sample_weight: likewise.
        batch_size: rows of a batch, for arrays; 32 if None.
        steps: batches to evaluate; all if None.
        cache_bytes: prepared batches up to this size are kept between validations.
        preprocess: prepares a batch.
        most_rows: returns how many rows of nested arrays may be evaluated as one batch, where no number of
            steps is given.
        device: where arrays are held; None leaves it to TensorFlow.

    Raises:
        ValueError: for empty or endless data, or as Keras.
    """
    if x is None:
        raise ValueError(
            "there is no validation data: x is None; pass arrays, a tf.data.Dataset, a keras.utils.PyDataset "
            "or a generator of batches"
        )
    adapter = keras_data.adapt(x, y, sample_weight, batch_size=batch_size, steps=steps)
    if keras_data.is_array_adapter(adapter):
        inputs = keras_data.array_inputs(adapter)
        leaves = [leaf for leaf in keras.tree.flatten(inputs) if leaf is not None]
        num_samples = int(leaves[0].shape[0])
        if num_samples == 0:
            raise ValueError("the validation data is empty: its arrays have 0 rows; pass at least one")
        if keras_data.are_dense(inputs):
            most = most_rows(inputs) if most_rows is not None and steps is None else 0
            return ArrayBatches(
                inputs,
                num_samples=num_samples,
                batch_size=adapter.batch_size * _together(adapter.batch_size, num_samples, most),
                steps=steps,
                preprocess=preprocess,
                device=device,
            )
        return StreamedBatches(adapter, steps, preprocess)
    if keras_data.is_tf_dataset_adapter(adapter):
        dataset = map_batches(preprocess, adapter.get_tf_dataset())
        cardinality = int(dataset.cardinality())
        if cardinality == 0:
            raise ValueError("the validation data is empty: its dataset has no batch")
        if cardinality == tf.data.INFINITE_CARDINALITY and steps is None:
            raise ValueError(
                "the validation dataset never ends; pass validation_steps=... (or steps=... to evaluate), "
                "or limit it with dataset.take(n)"
            )
        repeatable = not reorders(dataset) and keras_data.is_repeatable(dataset) and not read_by(dataset)
        # In this order: the look at the first batch begins a pass.
        if repeatable and _fits(dataset, cardinality, steps, cache_bytes):
            return CachedBatches(dataset, steps)
    return StreamedBatches(adapter, steps, preprocess)


def _together(batch_size: int, num_samples: int, most_rows: int) -> int:
    """Returns how many batches to join; enough are left for any number of workers to share evenly."""
    return max(1, min(most_rows // batch_size, num_samples // batch_size // _LEAST_JOINED))


def _fits(dataset: tf.data.Dataset, cardinality: int, steps: int | None, cache_bytes: int) -> bool:
    """Whether the prepared batches are known to fit, by the size of the first one."""
    count = min(n for n in (cardinality, steps) if n is not None and n > 0) if cardinality > 0 else steps
    if count is None:
        return False
    first = next(iter(dataset.take(1)), None)
    if first is None:
        return True
    leaves = [leaf for leaf in tf.nest.flatten(first, expand_composites=True) if tf.is_tensor(leaf)]
    return count * sum(size_bytes(leaf) for leaf in leaves) <= cache_bytes
