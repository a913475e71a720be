"""What has been found out about a pipeline, kept as long as the pipeline and no longer.

A pipeline never changes, and to walk through its functions takes milliseconds: a `fit` in a loop looks once.
Nothing that is kept here may hold the pipeline: its arrays are to go when the user lets go of it.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

__all__ = ["looked_up_once", "without_autotune"]

T = TypeVar("T")

_FACTS: weakref.WeakKeyDictionary[tf.data.Dataset, dict[str, Any]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def looked_up_once(find: Callable[[Any], T]) -> Callable[[Any], T]:
    """Decorates a function that finds something out about a pipeline, which does not hold the pipeline."""

    @functools.wraps(find)
    def found(dataset: Any) -> T:
        facts = _facts_of(dataset)
        if facts is None:
            return find(dataset)
        if find.__name__ not in facts:
            facts[find.__name__] = find(dataset)
        fact: T = facts[find.__name__]
        return fact

    return found


def without_autotune(dataset: Any) -> Any:
    """Returns a pipeline with the autotune thread off, unless the user set it; other data as it is.

    Tearing an iterator down can wait for that thread's next period, up to seconds:
    docs/results/2026-11-24-epochs.md.
    """
    if not isinstance(dataset, tf.data.Dataset) or _sets_autotune(dataset):
        return dataset
    untuned = copy.copy(_untuned(dataset))
    untuned._input_dataset = dataset
    return untuned


@looked_up_once
def _sets_autotune(dataset: tf.data.Dataset) -> bool:
    return dataset.options().autotune.enabled is not None


@looked_up_once
def _untuned(dataset: tf.data.Dataset) -> Any:
    """Returns the pipeline without autotune, which does not hold the one that it was made from."""
    options = tf.data.Options()
    options.autotune.enabled = False
    untuned = dataset.with_options(options)
    untuned._input_dataset = None
    return untuned


def _facts_of(dataset: Any) -> dict[str, Any] | None:
    """Returns what is kept of a pipeline; it is the same one without autotune. None for any other data."""
    if not isinstance(dataset, tf.data.Dataset):
        return None
    source = getattr(dataset, "_input_dataset", None)
    with _LOCK:
        facts = _FACTS.get(source, {}) if source is not None else {}
        if "_untuned" in facts and facts["_untuned"]._variant_tensor is dataset._variant_tensor:
            return facts
        return _FACTS.setdefault(dataset, {})
