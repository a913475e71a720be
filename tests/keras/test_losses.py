"""How a model comes to the loss of a batch, and which losses are averages over rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras import metrics as keras_metrics
from tests.networks import CLASSES, FEATURES, arrays, functional, functional_data, sequential

X, Y = arrays(20)


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
    model.reset_metrics()
    keras_metrics.compute_and_track_loss(model, X, Y, y_pred, weight)
    assert float(model.get_metrics_result()["loss"]) == pytest.approx(expected, rel=1e-5)


def test_what_is_added_to_the_compiled_loss_is_listed():
    """Model._aggregate_additional_loss, losses."""
    model = regularised()
    y_pred = model(X)
    added = keras_metrics.additional_losses(model)
    assert len(added) == 2
    whole = keras_metrics.compute_loss(model, X, Y, y_pred, None)
    compiled = model.loss(Y, y_pred)
    np.testing.assert_allclose(float(sum(added)) + float(compiled), float(whole), rtol=1e-5)


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


def test_several_losses_are_averaged_one_by_one():
    """CompileLoss.metrics."""
    one, several = sequential(), functional()
    one.evaluate(X, Y, verbose=0)
    x, y = functional_data(20)
    several.evaluate(x, y, verbose=0)
    assert not keras_metrics.tracks_each_loss(one)
    assert keras_metrics.tracks_each_loss(several)
    assert keras_metrics.row_loss(several) is None
