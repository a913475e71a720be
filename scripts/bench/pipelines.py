"""The tf.data pipelines of the systems, from the one in the tutorials to the one of an expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from scripts.bench.tasks import Examples, Task
from scripts.bench.workloads import Workload

__all__ = ["plain", "raw", "trainer_data", "tuned"]


def plain(workload: Workload, examples: Examples, threads: int, *, training: bool) -> tf.data.Dataset:
    """Returns the pipeline of the TFDS Keras tutorial: map each example, cache, shuffle, batch, prefetch.

    `num_parallel_calls` is `threads`, as in paper P1; everything else is left to tf.data. Examples that
    are augmented at random are not cached, for then each epoch would see the same ones.
    """
    dataset = _slices(examples)
    prepare = _prepare(workload, training=training)
    if prepare is not None:
        dataset = dataset.map(prepare, num_parallel_calls=threads)
    if not training or workload.decode is None:
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
    prepare = _prepare(workload, training=training)
    if workload.decode is not None:
        dataset = dataset.map(prepare, num_parallel_calls=threads, deterministic=False)
        dataset = dataset.batch(workload.batch_size)
    else:
        dataset = dataset.batch(workload.batch_size)
        if prepare is not None:
            dataset = dataset.map(prepare, num_parallel_calls=threads)
    if not training:
        dataset = dataset.cache()
    return _without_autotune(dataset.prefetch(8))


def trainer_data(workload: Workload, task: Task, threads: int) -> dict[str, Any]:
    """Returns arguments of `Trainer.fit`: raw arrays, or the tuned pipeline where a workload decodes."""
    if workload.decode is None:
        return {
            "x": task.train.x,
            "y": task.train.y,
            "batch_size": workload.batch_size,
            "validation_data": (task.validation.x, task.validation.y),
        }
    return {
        "x": tuned(workload, task.train, threads, training=True),
        "shuffle": False,  # the pipeline does
        "validation_data": tuned(workload, task.validation, threads, training=False),
    }


def raw(workload: Workload, examples: Examples) -> tf.data.Dataset:
    """Returns validation batches in order, decoded but not scaled."""
    dataset = _slices(examples)
    if workload.decode is not None:
        dataset = dataset.map(_prepare(workload, training=False))
    return _without_autotune(dataset.batch(workload.batch_size))


def _slices(examples: Examples) -> tf.data.Dataset:
    x: Any = examples.x
    if x.dtype == object:
        x = tf.constant(x.tolist(), tf.string)
    return tf.data.Dataset.from_tensor_slices((x, examples.y))


def _prepare(workload: Workload, *, training: bool) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    decode, scale = workload.decode, workload.pixel_scale
    if decode is not None:
        return lambda x, y: (decode(x, training), y)
    if scale is not None:
        return lambda x, y: (tf.cast(x, tf.float32) * scale, y)
    return None


def _without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
