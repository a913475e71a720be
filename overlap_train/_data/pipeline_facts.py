"""A cache of facts about `tf.data` pipelines.

A pipeline never changes, and walking through its functions takes milliseconds, so a `fit` in a loop does it
once. No cached fact may hold the pipeline: its arrays are to be freed when the user drops it.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")

_FACTS: weakref.WeakKeyDictionary[tf.data.Dataset, dict[str, Any]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def looked_up_once(find: Callable[[Any], T]) -> Callable[[Any], T]:
    """Caches what a function returns of a pipeline, which must not hold the pipeline."""

    @functools.wraps(find)
    def look_up(dataset: Any) -> T:
        if not isinstance(dataset, tf.data.Dataset):
            return find(dataset)
        facts = _facts_of(dataset)
        if find.__name__ not in facts:
            facts[find.__name__] = find(dataset)
        fact: T = facts[find.__name__]
        return fact

    return look_up


def unwrapped(dataset: Any) -> Any:
    """Returns the pipeline that one of `tf.compat.v1.data` stands for; other data as it is."""
    while isinstance(inner := getattr(dataset, "_dataset", None), tf.data.Dataset):
        dataset = inner
    return dataset


def without_autotune(dataset: Any) -> Any:
    """Returns a pipeline with the autotune thread off, unless the user set it; other data as it is.

    Ending an iterator can wait for that thread, whose sleeps double from 10 ms: 42 s became 82 s.
    """
    if not isinstance(dataset, tf.data.Dataset) or _sets_autotune(dataset):
        return dataset
    dataset = unwrapped(dataset)
    untuned = copy.copy(_untuned(dataset))
    untuned._input_dataset = dataset
    facts = _facts_of(dataset)
    with _LOCK:
        _FACTS[untuned] = facts  # which are the same
    return untuned


@looked_up_once
def _untuned(dataset: tf.data.Dataset) -> Any:
    """Returns the pipeline without autotune, and without what would hold the one that it was made from.

    TensorFlow optimizes each new pipeline when it is first iterated, 4 ms for two stages.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    untuned = dataset.with_options(options)
    untuned._input_dataset = None
    return untuned


@looked_up_once
def _sets_autotune(dataset: tf.data.Dataset) -> bool:
    return dataset.options().autotune.enabled is not None


def _facts_of(dataset: tf.data.Dataset) -> dict[str, Any]:
    with _LOCK:
        return _FACTS.setdefault(dataset, {})
