"""The metrics of a model, and the logs.

Leans on `CompileMetrics`, `MetricsList`, `pythonify_logs`, `_get_metrics_result_or_logs`,
`_flatten_metrics_in_order`, `_compile_loss`, `_compile_metrics` and `_loss_tracker`.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from overlap_train._keras import models
from overlap_train._keras.names import CompileMetrics, MetricsList, pythonify_logs


def python_logs(logs: Any) -> dict[str, Any]:
    """Return logs of tensors as flat logs of floats or arrays, as callbacks get them (`pythonify_logs`)."""
    return dict(pythonify_logs(logs))


def metrics_or_logs(model: keras.Model, logs: Any) -> Any:
    """Return the metrics if the logs have their names, else the logs (`_get_metrics_result_or_logs`)."""
    return model._get_metrics_result_or_logs(logs)


def flatten_logs(model: keras.Model, logs: dict[str, float]) -> Any:
    """Return metrics as `keras.Model.evaluate` does without `return_dict` (`_flatten_metrics_in_order`)."""
    return model._flatten_metrics_in_order(logs)


def metric_leaves(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the metrics of `model` one by one, without the containers that `compile` makes."""
    return list({id(metric): metric for metric in _leaves(model.metrics)}.values())


def _leaves(metrics: Iterable[keras.metrics.Metric]) -> Iterator[keras.metrics.Metric]:
    for metric in metrics:
        if isinstance(metric, (CompileMetrics, MetricsList)):
            yield from _leaves(metric.metrics)
        else:
            yield metric


def changed_metrics(
    model: keras.Model, before: Sequence[keras.metrics.Metric], outputs: Iterable[str], *, own_logs: bool
) -> str | None:
    """Return the name of the model's list of metrics if logs are made otherwise with it than with `before`.

    `outputs` are the names in the logs of a step, and `own_logs` says whether these logs count or the
    metrics; Keras decides that anew at the end of each epoch.
    """
    present, compiled = model.metrics, model._compile_metrics
    if len(present) == len(before) and all(map(operator.is_, present, before)):
        return None
    if compiled is not None and not compiled.built:  # the model was compiled: all is traced anew
        return None
    # Several replicas would read them together.
    is_read_alone = not has_custom_metrics(model) and model.distribute_strategy.num_replicas_in_sync == 1
    if is_read_alone and own_logs == (set(outputs) != set(model.get_metrics_result())):
        return None
    return f"{type(model).__name__}.metrics"


REPLACED = "a method of the model or of a metric"  # the name of such a change


def has_custom_metrics(model: keras.Model) -> bool:
    """Whether the user's code resets the metrics of `model`, or computes their results."""
    return bool(custom_methods(model))


def custom_methods(model: keras.Model) -> list[Any]:
    """Return the functions of the user's that reset the metrics of `model` or compute their results."""
    methods = [model.reset_metrics, model.get_metrics_result]
    for metric in metric_leaves(model):
        methods += [metric.reset_state, metric.result]
    return [getattr(m, "__func__", m) for m in methods if not models.is_stock_method(m)]


def reads_settings(model: keras.Model) -> bool:
    """Whether a metric of `model` may compute its result from more than its variables."""
    simple = (keras.metrics.Mean, keras.metrics.Sum)
    return not all(
        isinstance(metric, simple) and models.is_stock_method(metric.result)
        for metric in metric_leaves(model)
    )


def settings_of(metric: keras.metrics.Metric) -> dict[str, Any]:
    """Return the plain attributes of a metric by name, such as its thresholds."""
    settings = {name: _plain(value) for name, value in vars(metric).items() if name not in _SET_BY_STEPS}
    return {name: value for name, value in settings.items() if value is not None}


_SET_BY_STEPS = frozenset({"built", "_built"})  # when a metric is first called


def _plain(value: Any) -> Any:
    """Return a plain value as one that can be compared, or None for any other object."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = tuple(map(_plain, value))
        return None if None in items else items
    return value.tobytes() if isinstance(value, np.ndarray) and not value.dtype.hasobject else None


def reset_others(model: keras.Model, handle_ids: Collection[int]) -> None:
    """Reset the metrics of `model` that have no variable with one of these handles."""
    for metric in metric_leaves(model):
        if not any(id(handle) in handle_ids for handle in _handles(metric)):
            metric.reset_state()


def unlisted_loss_handles(model: keras.Model) -> list[int]:
    """Return the `id` of each handle of Keras's loss tracker, if the model's own `metrics` omits it."""
    tracker = getattr(model, "_loss_tracker", None)
    if tracker is None or any(metric is tracker for metric in model.metrics):
        return []
    return list(map(id, _handles(tracker)))


def stock_metric_handles(model: keras.Model) -> list[Any]:
    """Return the handles of all variables of Keras's own metrics."""
    stock = [metric for metric in metric_leaves(model) if models.is_stock_method(type(metric))]
    return [handle for metric in stock for handle in _handles(metric)]


def _handles(metric: keras.metrics.Metric) -> list[Any]:
    return [handle for variable in metric.variables for handle in models.variable_handles(variable)]


def tracks_each_loss(model: keras.Model) -> bool:
    """Whether Keras averages the losses of several outputs one by one (`_compile_loss.metrics`)."""
    loss = model._compile_loss
    return loss is not None and bool(loss.metrics)
