"""Which validations may be made in larger batches than the user's.

A tiny network's batch is mostly the cost of starting its operations. Where no row has to do with another,
and loss and metrics are sums over rows, larger batches give the same numbers but for the order in which
floats are added.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._training.splitting import rows_correspond, unknown_layer

__all__ = ["rows_together"]

# At most so many rows, and so many rows times weights: beyond that the arithmetic outweighs the starting.
_MOST_ROWS, _MOST_PRODUCTS = 1024, 1e7


def rows_together(model: keras.Model, arrays: Any) -> int:
    """Returns how many rows of arrays may be evaluated as one batch; 0 says nothing is known to allow it.

    Args:
        model: built and compiled; its own `test_step` evaluates.
        arrays: (x, y, sample_weight) or less, as the model gets them, but all rows.
    """
    methods = (model.test_step, model.compute_loss, model.compute_metrics)
    if keras_training.is_deterministic() or not all(map(keras_models.is_stock_method, methods)):
        return 0
    if unknown_layer(model, also=("BatchNormalization",)) is not None or not keras_metrics.averages_rows(
        model
    ):
        return 0
    if not _each_row_has_its_own(model, arrays) or any(
        map(_needs_the_batch, keras_models.flat_layers(model))
    ):
        return 0
    return min(_MOST_ROWS, int(_MOST_PRODUCTS / max(1, model.count_params())))


def _needs_the_batch(layer: keras.Layer) -> bool:
    """Whether a layer keeps something for the rows of a batch, adds a loss of it, or is better left alone."""
    # A mask divides a batch's loss by what it leaves; a convolution has few weights and much arithmetic.
    kept = getattr(layer, "stateful", False) or getattr(layer, "mask_zero", False)
    return kept or getattr(layer, "activity_regularizer", None) is not None or "Conv" in type(layer).__name__


def _each_row_has_its_own(model: keras.Model, arrays: Any) -> bool:
    """Whether no label or weight is broadcast over the rows of a batch."""
    _, y, sample_weight = keras.utils.unpack_x_y_sample_weight(arrays)
    given = [model.outputs, [y], [] if sample_weight is None else [sample_weight]]
    leaves = [keras.tree.flatten(structure) for structure in given]
    if any(leaf is None for leaf in leaves[1]) or [len(part) for part in leaves[:2]] != [1, 1]:
        return False
    shapes = [tf.TensorShape([None, *leaf.shape[1:]]) for part in leaves for leaf in part]
    labels, outputs = shapes[1], shapes[0]
    weights = shapes[2] if len(shapes) == 3 else None
    classes = keras_metrics.row_loss(model) == "sparse_categorical_crossentropy"
    return len(shapes) <= 3 and rows_correspond(labels, outputs, weights, classes=classes)
