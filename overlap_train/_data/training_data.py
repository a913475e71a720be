"""A: from what `fit` was given as training data to the feed of its steps."""

from __future__ import annotations

from collections.abc import Callable

import keras

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.feed import Feed
from overlap_train._data.iterator_feed import IteratorFeed
from overlap_train._data.memory import copied_bytes
from overlap_train._data.preprocessing import Preprocess
from overlap_train._keras.data import Arrays, Pipeline, row_shuffling

__all__ = ["make_feed"]


def make_feed(
    data: Arrays | Pipeline, hold_in_memory: Callable[[int], bool], preprocess: Preprocess | None = None
) -> Feed:
    """Returns what the training draws its batches from."""
    if isinstance(data, Arrays):
        known = data.dense and not (data.shuffle and row_shuffling() == "counted")
        if known and hold_in_memory(sum(map(copied_bytes, keras.tree.flatten(data.inputs)))):
            return ArrayFeed(data, preprocess)
        data = data.pipeline
    return IteratorFeed(data, preprocess)
