"""The metrics of a model one by one, and its logs as Keras hands them out.

Leans on `CompileMetrics`, `MetricsList`, `pythonify_logs`, `_get_metrics_result_or_logs` and
`_flatten_metrics_in_order`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import keras

from overlap_train._keras import methods, models
from overlap_train._keras.names import CompileMetrics, MetricsList, pythonify_logs

__all__ = [
    "flatten_logs",
    "metric_leaves",
    "metrics_or_logs",
    "python_logs",
    "reset_others",
    "stock_metric_handles",
    "unlisted_loss_handles",
]


def python_logs(logs: Any) -> dict[str, Any]:
    """Turn logs of tensors into flat logs of floats, or arrays, as callbacks get them (`pythonify_logs`)."""
    return dict(pythonify_logs(logs))


def metrics_or_logs(model: keras.Model, logs: Any) -> Any:
    """Return the metrics' results where the logs have their names, else the logs.

    Keras's rule for the logs of an epoch and of a validation (`_get_metrics_result_or_logs`).
    """
    return model._get_metrics_result_or_logs(logs)


def flatten_logs(model: keras.Model, logs: dict[str, float]) -> Any:
    """Return metrics as `keras.Model.evaluate` does without `return_dict` (`_flatten_metrics_in_order`)."""
    return model._flatten_metrics_in_order(logs)


def metric_leaves(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the metrics of `model` one by one, with the containers that `compile` makes opened."""
    leaves: list[keras.metrics.Metric] = []

    def add(metrics: Iterable[keras.metrics.Metric]) -> None:
        for metric in metrics:
            if isinstance(metric, (CompileMetrics, MetricsList)):
                add(metric.metrics)
            elif not any(metric is leaf for leaf in leaves):
                leaves.append(metric)

    add(model.metrics)
    return leaves


def reset_others(model: keras.Model, known: Collection[int]) -> None:
    """Set back the metrics of `model` none of whose variables is known, by the `id` of a handle."""
    for metric in metric_leaves(model):
        handles = {id(handle) for v in metric.variables for handle in models.variable_handles(v)}
        if handles.isdisjoint(known):
            metric.reset_state()


def unlisted_loss_handles(model: keras.Model) -> list[int]:
    """Return the `id` of each handle of Keras's loss tracker, if the model's own `metrics` leaves it out."""
    tracker = getattr(model, "_loss_tracker", None)
    if tracker is None or any(metric is tracker for metric in model.metrics):
        return []
    return [id(handle) for variable in tracker.variables for handle in models.variable_handles(variable)]


def stock_metric_handles(model: keras.Model) -> list[Any]:
    """Return the handles of all variables of Keras's own metrics."""
    metrics = [metric for metric in metric_leaves(model) if methods.is_stock_method(type(metric))]
    return [handle for m in metrics for v in m.variables for handle in models.variable_handles(v)]
