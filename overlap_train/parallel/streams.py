"""Logical GPUs: parts of one card with streams of their own.

TensorFlow has one compute stream for each of its devices, so functions called from several threads on one
GPU run one after the other. A card divided into logical GPUs has as many streams: one for the training and
one for the validation, or one for each part of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from overlap_train._support.arguments import require_count, short_repr

_MOST_PARTS = 64
_MOST_URGENT = -5  # of CUDA's streams, whose range begins at -5 or later and ends at 0


def split_gpu(
    parts: int = 2,
    memory_mib: int | Sequence[int] = 1024,
    priorities: Sequence[int] | None = None,
    *,
    gpu: int = 0,
) -> tuple[str, ...]:
    """Divide a GPU into logical ones; call it before TensorFlow uses the GPU.

    Args:
        parts: number of logical GPUs.
        memory_mib: MiB of GPU memory for every part, or a sequence with one number for each.
        priorities: priorities of the parts' streams, from 0 down to -5; the lower number goes first if
            several have work. `(-1, 0)` prefers training on the first part to validation on the second. None
            gives all the same. If the card lacks a priority, TensorFlow raises when it starts.
        gpu: the number of the card, in the order of `tf.config.list_physical_devices("GPU")`.

    Returns:
        The parts' names, such as `("GPU:0", "GPU:1")`, for `ValidationPolicy(workers=…)`, `tf.device` and
        `tf.distribute.MirroredStrategy`. With the latter pass `cross_device_ops=
        tf.distribute.HierarchicalCopyAllReduce()`: NCCL does not run between parts of one card.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range.
        RuntimeError: there is no such GPU, or TensorFlow has already initialised it.
    """
    parts = require_count("parts", parts, minimum=2, maximum=_MOST_PARTS)
    gpu = require_count("gpu", gpu, minimum=0)
    one = isinstance(memory_mib, (int, np.integer))
    sizes = _one_for_each("memory_mib", [memory_mib] * parts if one else memory_mib, parts)
    sizes = [require_count("memory_mib", size, minimum=1) for size in sizes]
    order = None
    if priorities is not None:
        order = _one_for_each("priorities", priorities, parts)
        order = [require_count("priorities", p, minimum=_MOST_URGENT, maximum=0) for p in order]
    cards = tf.config.list_physical_devices("GPU")
    if gpu >= len(cards):
        raise RuntimeError(
            f"there is no GPU number {gpu}: TensorFlow sees {len(cards)}; check CUDA_VISIBLE_DEVICES and the "
            "driver, or train on the CPU"
        )
    configurations = [
        tf.config.LogicalDeviceConfiguration(
            memory_limit=size, experimental_priority=None if order is None else order[part]
        )
        for part, size in enumerate(sizes)
    ]
    try:
        tf.config.set_logical_device_configuration(cards[gpu], configurations)
    except RuntimeError as error:
        raise RuntimeError(
            "TensorFlow has initialised the GPU already; call split_gpu first, before any tensor is made"
        ) from error
    others = map(tf.config.get_logical_device_configuration, cards[:gpu])
    first = sum(len(configured or [None]) for configured in others)
    return tuple(f"GPU:{first + part}" for part in range(parts))


def _one_for_each(name: str, values: object, parts: int) -> list[int]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a sequence of int; got {short_repr(values)}")
    if len(values) != parts:
        raise ValueError(f"{name} has {len(values)} values for {parts} parts; pass one for each")
    return list(values)
