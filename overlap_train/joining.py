"""Which validations may be made in larger batches than the user's.

A tiny network's batch is mostly the cost of starting its operations. Where no row has to do with another,
and loss and metrics are sums over rows, larger batches give the same numbers but for the order in which
floats are added.
"""

from __future__ import annotations

import keras

from overlap_train import _keras
from overlap_train.training.obstacles import unknown_layer

__all__ = ["rows_together"]

# At most so many rows, and so many rows times weights: beyond that the arithmetic outweighs the starting.
_MOST_ROWS, _MOST_PRODUCTS = 1024, 1e7


def rows_together(model: keras.Model) -> int:
    """Returns how many rows of arrays may be evaluated as one batch; 0 says nothing is known to allow it.

    Args:
        model: built and compiled; its own `test_step` evaluates.
    """
    methods = (model.test_step, model.compute_loss, model.compute_metrics)
    if _keras.is_deterministic() or not all(map(_keras.is_stock_method, methods)):
        return 0
    if unknown_layer(model, also=("BatchNormalization",)) is not None or not _keras.averages_rows(model):
        return 0
    # Labels of fewer axes than the outputs may be broadcast, each row with the labels of all.
    if any(len(output.shape) != 2 for output in model.outputs):
        return 0
    for layer in _keras.flat_layers(model):
        # A mask divides a batch's loss by what it leaves; a convolution has few weights and much arithmetic.
        if getattr(layer, "mask_zero", False) or "Conv" in type(layer).__name__:
            return 0
    return min(_MOST_ROWS, int(_MOST_PRODUCTS / max(1, model.count_params())))
