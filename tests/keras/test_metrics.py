"""Losses and metrics come out as Keras computes them; what optimizers keep and do besides."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import optimizers as keras_optimizers
from tests.networks import CLASSES, FEATURES, arrays, sequential

X, Y = arrays(20)


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
