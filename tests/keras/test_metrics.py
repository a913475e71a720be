"""Metrics and logs as Keras hands them out."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train._keras import metrics as keras_metrics
from tests.networks import arrays, functional, functional_data, sequential

X, Y = arrays(20)


def test_logs_become_floats_and_a_list_in_keras_s_order():
    """pythonify_logs and Model._flatten_metrics_in_order."""
    model = functional()
    x, y = functional_data(20)
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    assert keras_metrics.flatten_logs(model, logs) == pytest.approx(model.evaluate(x, y, verbose=0))
    python = keras_metrics.python_logs({"b": tf.constant(1.5), "a": {"c": tf.constant(2.0)}})
    assert python == {"b": 1.5, "c": 2.0}
    assert all(type(value) is float for value in python.values())


def test_the_containers_of_compile_are_opened():
    """compile_utils.CompileMetrics and MetricsList: closed, every metric would count as unknown."""
    model = functional()
    x, y = functional_data(20)
    model.evaluate(x, y, verbose=0)
    names = {type(metric).__name__ for metric in keras_metrics.metric_leaves(model)}
    assert names <= {"Mean", "SparseCategoricalAccuracy", "MeanAbsoluteError"}
    assert {"SparseCategoricalAccuracy", "MeanAbsoluteError"} <= names
    variables = [id(v) for metric in keras_metrics.metric_leaves(model) for v in metric.variables]
    assert sorted(variables) == sorted(id(v) for v in model.metrics_variables)


def test_logs_count_only_where_the_metrics_have_other_names():
    """_get_metrics_result_or_logs."""
    model = sequential()
    model.evaluate(X, Y, verbose=0)
    metrics = keras_metrics.python_logs(model.get_metrics_result())
    same = keras_metrics.metrics_or_logs(model, {"accuracy": 7.0, "loss": 8.0})
    assert keras_metrics.python_logs(same) == metrics
    other = {"loss": 8.0, "extra": 9.0}
    assert keras_metrics.metrics_or_logs(model, other) == other


def test_the_variables_of_stock_metrics_are_known_by_their_handles():
    class Own(keras.metrics.Mean):
        pass

    model = sequential()
    model.own = Own()
    model.evaluate(X, Y, verbose=0)
    handles = keras_metrics.stock_metric_handles(model)
    assert len(handles) == len(model.metrics_variables) - len(model.own.variables)
    assert not any(handle is variable.value.handle for handle in handles for variable in model.own.variables)
