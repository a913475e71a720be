"""Which metrics can be evaluated in parts: those whose state is a sum over batches."""

from __future__ import annotations

import keras
import numpy as np

from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._support.arguments import array_of

__all__ = ["unmergeable_metrics"]


def unmergeable_metrics(model: keras.Model) -> list[str]:
    """Returns the names of the metrics whose states of two parts do not add up to the state of the whole.

    A metric's state adds up if Keras's own `update_state` maintains it and it starts at zero; Keras's are
    sums and counts (Mean, Sum, the confusion-matrix family, AUC, IoU, R2Score, FBetaScore). Of a metric
    with an `update_state` of the user's own nothing is known, so it counts as not mergeable.
    """
    return [metric.name for metric in keras_metrics.metric_leaves(model) if not _is_sum(metric)]


def _is_sum(metric: keras.metrics.Metric) -> bool:
    if not keras_models.is_stock_method(metric.update_state):
        return False
    if not keras_models.is_stock_method(metric.reset_state):
        return False
    return not any(np.any(value) for value in _initial_values(metric))


def _initial_values(metric: keras.metrics.Metric) -> list[np.ndarray]:
    """Returns what `reset_state` sets, without touching the metric."""
    with keras.StatelessScope() as scope:
        metric.reset_state()
    values = [scope.get_current_value(variable) for variable in metric.variables]
    return [array_of(value) for value in values if value is not None]
