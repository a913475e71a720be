"""The rows of a batch: nested tensors whose axis 0 counts them. Called while a step is traced."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

__all__ = ["leaves_of", "row_count"]


def leaves_of(structure: Any) -> list[tf.Tensor]:
    """Return the tensors of a nested structure; None, which stands for what is not given, is left out."""
    return [leaf for leaf in keras.tree.flatten(structure) if leaf is not None]


def row_count(leaf: tf.Tensor) -> Any:
    """Return how many rows a tensor has: an int where its shape tells, otherwise a scalar tensor."""
    return leaf.shape[0] if leaf.shape[0] is not None else tf.shape(leaf)[0]
