"""Losses and metrics come out as Keras computes them; what optimizers keep and do besides."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import optimizers as keras_optimizers
from tests.networks import CLASSES, FEATURES, arrays, functional, functional_data, sequential

X, Y = arrays(20)


@pytest.mark.nightly
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


def regularised():
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(CLASSES, kernel_regularizer="l2", activity_regularizer="l1")
    model = keras.Sequential([keras.Input((FEATURES,)), layer])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def test_the_loss_of_a_batch_is_that_of_train_step_and_is_counted():
    """Model._compute_loss, _loss_tracker."""
    model = regularised()
    weight = np.linspace(0, 1, 20, dtype="float32")
    expected = model.evaluate(X, Y, sample_weight=weight, batch_size=20, verbose=0, return_dict=True)["loss"]
    model.reset_metrics()
    y_pred = model(X, training=True)
    loss = keras_metrics.compute_loss(model, X, Y, y_pred, weight)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    keras_metrics.track_loss(model, (None, X[:4]), tf.constant(2.0))
    keras_metrics.track_loss(model, X[:12], tf.constant(4.0))
    assert float(model.get_metrics_result()["loss"]) == pytest.approx(3.5), "by their rows"


def test_what_is_added_to_the_compiled_loss_is_listed():
    """Model._aggregate_additional_loss, losses."""
    model = regularised()
    y_pred = model(X)
    added = keras_metrics.additional_losses(model)
    assert len(added) == 2
    whole = keras_metrics.compute_loss(model, X, Y, y_pred, None)
    compiled = model.loss(Y, y_pred)
    np.testing.assert_allclose(float(sum(added)) + float(compiled), float(whole), rtol=1e-5)


@pytest.mark.by_default("custom")
@pytest.mark.parametrize(
    ("loss", "name"),
    [
        ("mse", "mean_squared_error"),
        (keras.losses.SparseCategoricalCrossentropy(), "sparse_categorical_crossentropy"),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=0), None),
        (keras.losses.MeanSquaredError(reduction="sum"), None),
        (keras.losses.Dice(), None),
        (lambda y, y_pred: keras.ops.mean(y_pred), None),
    ],
    ids=["by name", "stock", "ignores a class", "sum", "of the whole batch", "custom"],
)
def test_a_stock_loss_of_rows_is_known_by_its_name(loss, name):
    """CompileLoss._flat_losses, LossFunctionWrapper.fn, _fn_kwargs."""
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, activation="softmax")])
    model.compile("sgd", loss, metrics=["accuracy"])
    assert keras_metrics.row_loss(model) is None, "before it is built"
    model.evaluate(
        X,
        Y if isinstance(loss, keras.losses.SparseCategoricalCrossentropy) else np.eye(CLASSES)[Y],
        verbose=0,
    )
    assert keras_metrics.row_loss(model) == name
    assert keras_metrics.averages_rows(model) is (name is not None)


@pytest.mark.nightly
def test_several_losses_are_averaged_one_by_one():
    """CompileLoss.metrics."""
    one, several = sequential(), functional()
    one.evaluate(X, Y, verbose=0)
    x, y = functional_data(20)
    several.evaluate(x, y, verbose=0)
    assert not keras_metrics.tracks_each_loss(one)
    assert keras_metrics.tracks_each_loss(several)
    assert keras_metrics.row_loss(several) is None


@pytest.mark.parametrize("scaled", [False, True])
def test_the_sum_over_replicas_is_spared_where_there_is_one(scaled):
    """Optimizer._all_reduce_sum_gradients, LossScaleOptimizer.inner_optimizer."""
    optimizer = keras.optimizers.SGD(0.5)
    stock = optimizer._all_reduce_sum_gradients
    outer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0) if scaled else optimizer
    variable = keras.Variable([1.0, 2.0])
    outer.build([variable])
    with keras_optimizers.without_all_reduce(outer):
        inside = optimizer._all_reduce_sum_gradients
        outer.apply_gradients([(tf.constant([2.0, 2.0]), variable)])
    assert inside != stock
    assert optimizer._all_reduce_sum_gradients == stock
    np.testing.assert_allclose(variable.numpy(), [0.0, 1.0])
    with keras_optimizers.without_all_reduce(None):
        pass


def test_adam_keeps_its_moments_by_variable():
    """Optimizer._get_variable_index, Adam._momentums, Adam._velocities."""
    optimizer = keras.optimizers.Adam()
    variables = [keras.Variable([1.0, 2.0]), keras.Variable([3.0])]
    optimizer.build(variables)
    optimizer.apply_gradients([(tf.constant([1.0, 2.0]), variables[0]), (tf.constant([3.0]), variables[1])])
    m, v = keras_optimizers.adam_moments(optimizer, variables[1].value)
    np.testing.assert_allclose(m, [0.3], rtol=1e-5)
    np.testing.assert_allclose(v, [0.009], rtol=1e-5)


def test_an_optimizer_is_built_as_its_first_update_would():
    """Optimizer.build within its name scope: its variables are named as by Keras."""
    ours, theirs = sequential("adam"), sequential("adam")
    keras_optimizers.build_optimizer(ours)
    theirs.fit(*arrays(20), verbose=0)
    assert ours.optimizer.built
    paths = [[variable.path.split("/", 1)[1] for variable in m.optimizer.variables] for m in (ours, theirs)]
    assert paths[0] == paths[1]
    keras_optimizers.build_optimizer(ours)
    assert len(ours.optimizer.variables) == len(theirs.optimizer.variables), "once"
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    keras_optimizers.build_optimizer(unbuilt)  # which has no optimizer
    unbuilt.compile("adam", "mse")
    keras_optimizers.build_optimizer(unbuilt)
    assert not unbuilt.optimizer.built
