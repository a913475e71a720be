"""The tf.data pipelines of the systems, from the one in the tutorials to the one of an expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from scripts.bench.tasks import Examples
from scripts.bench.workloads import Workload


def plain(workload: Workload, examples: Examples, threads: int, *, training: bool) -> tf.data.Dataset:
    """Returns the pipeline of the TFDS Keras tutorial: map each example, cache, shuffle, batch, prefetch.

    `num_parallel_calls` is `threads`, as in paper P1; everything else is left to tf.data.
    """
    dataset = _slices(examples)
    if (prepare := _prepare(workload)) is not None:
        dataset = dataset.map(prepare, num_parallel_calls=threads)
    dataset = dataset.cache()
    if training:
        dataset = dataset.shuffle(len(examples))
    return dataset.batch(workload.batch_size).prefetch(tf.data.AUTOTUNE)


def tuned(workload: Workload, examples: Examples, threads: int, *, training: bool) -> tf.data.Dataset:
    """Returns the pipeline of somebody who knows tf.data: whole batches are scaled at once, validation
    batches cached whole, and the autotune thread is off, whose teardown can stall the end of an epoch.
    """
    dataset = _slices(examples)
    if training:
        dataset = dataset.shuffle(len(examples))
    dataset = dataset.batch(workload.batch_size)
    if (prepare := _prepare(workload)) is not None:
        dataset = dataset.map(prepare, num_parallel_calls=threads)
    if not training:
        dataset = dataset.cache()
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(8).with_options(options)


def _slices(examples: Examples) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((examples.x, examples.y))


def _prepare(workload: Workload) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    scale = workload.pixel_scale
    return None if scale is None else lambda x, y: (tf.cast(x, tf.float32) * scale, y)
