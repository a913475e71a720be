"""How we run a user's `tf.data` pipeline, and what Keras has TensorFlow fetch of it ahead.

Keras lets TensorFlow put a stage behind a pipeline that fetches ahead. Where that can be seen in the next
pass, a pipeline is asked for as much here.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from overlap_train._data.pipeline import cache_files, is_cache, reorders, stages_of
from overlap_train._data.pipeline_facts import looked_up_once, without_autotune
from overlap_train._data.preprocessing import Preprocess, prepare

__all__ = ["is_asked_for_its_end", "prepared_batches"]


def prepared_batches(dataset: Any, preprocess: Preprocess | None) -> Any:
    """Returns what a training or a validation runs of a user's pipeline: prepared, without autotune.

    Whatever else than a dataset is iterated over comes back as it is, unless a function is to prepare it.
    """
    if preprocess is not None:
        dataset = dataset.map(lambda *batch: prepare(preprocess, batch if len(batch) > 1 else batch[0]))
    if isinstance(dataset, tf.data.Dataset) and _is_begun_ahead(dataset):
        dataset = dataset.prefetch(1)
    return without_autotune(dataset)


@looked_up_once
def _is_begun_ahead(dataset: tf.data.Dataset) -> bool:
    """Whether Keras has the next pass begun when the last batch of one has been drawn, and that can be seen.

    Behind the last batch of a repeated shuffle TensorFlow's prefetching draws the next order, of which
    whoever draws from the same seeds gets the one after.
    """
    repeats = (stage for stage in stages_of(dataset) if type(stage).__name__ == "_RepeatDataset")
    return _is_prefetched(dataset) and not _runs_ahead(dataset) and any(map(reorders, repeats))


@looked_up_once
def is_asked_for_its_end(dataset: Any) -> bool:
    """Whether Keras has the end of a pass drawn, too, whose length it knows, and that can be seen.

    By prefetching: thereby a cache that does not know its length, or is written to a file, learns that it
    holds all. How far that gets before Keras lets go of an iterator is a matter of time; almost always it
    does.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return False
    caches = [stage for stage in stages_of(dataset) if is_cache(stage)]
    waits = cache_files(dataset) or any(each.cardinality() == tf.data.UNKNOWN_CARDINALITY for each in caches)
    return bool(waits) and (_is_prefetched(dataset) or _runs_ahead(dataset))


def _is_prefetched(dataset: tf.data.Dataset) -> bool:
    """Whether TensorFlow has a pipeline prefetch: unless it is told not to."""
    options = dataset.options()
    return options.autotune.enabled is None and (
        options.experimental_optimization.inject_prefetch is not False
        and options.experimental_optimization.apply_default_optimizations is not False
    )


def _runs_ahead(dataset: tf.data.Dataset) -> bool:
    """Whether a pipeline ends with a stage that draws ahead."""
    while type(dataset).__name__ == "_OptionsDataset":
        (dataset,) = dataset._inputs()
    name = type(dataset).__name__
    return name == "_PrefetchDataset" or name.startswith("_Parallel")
