"""The numbers of two replicas are those of one device: other models, losses, metrics and layers."""

from __future__ import annotations

from tests.training.replicas.two_cpus import on_two  # isort: skip  # before anything starts TensorFlow

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer
from tests.networks import (
    CLASSES,
    FEATURES,
    VALIDATION_ROWS,
    Buckets,
    arrays,
    assert_same_history,
    assert_same_weights,
    crossentropy,
    looking_up,
)
from tests.training.replicas.cases_numbers import assert_same_on_both, fit_both


def test_auc_and_a_metric_whose_state_is_no_sum():
    class Largest(keras.metrics.Metric):
        """The largest output seen."""

        def __init__(self):
            super().__init__(name="largest")
            self.value = self.add_weight(name="value", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

        def result(self):
            return self.value + 0.0

    def build():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((FEATURES,)), keras.layers.Dense(1, activation="sigmoid", activity_regularizer="l2")]
        )
        model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc"), Largest()])
        return model

    x, y = arrays()
    fit_both(build, x, (y % 2)[:, None].astype("float32"), validation_split=0.2)


def test_masked_sequences_and_an_embedding():
    def build():
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [
                keras.Input((7,), dtype="int32"),
                keras.layers.Embedding(20, 6, mask_zero=True),
                keras.layers.SimpleRNN(5, return_sequences=True),
                keras.layers.Dense(3),
            ]
        )
        model.compile("adam", crossentropy(), metrics=["accuracy"])
        return model

    rng = np.random.default_rng(0)
    x = rng.integers(0, 20, (75, 7))
    fit_both(build, x, rng.integers(0, 3, (75, 7)), batch_size=20)


class Tied(keras.Model):
    """Looks words up twice and predicts them by the same matrix: sparse gradients and a dense one, of one."""

    def __init__(self):
        super().__init__()
        self.buckets, self.table = Buckets(), keras.layers.Embedding(20, 6)

    def call(self, numbers):
        words = self.buckets(numbers)
        seen = keras.ops.mean(self.table(words), axis=1) + self.table(words[:, 0])
        return keras.ops.matmul(seen, keras.ops.transpose(self.table.embeddings))


def tied():
    keras.utils.set_random_seed(7)
    model = Tied()
    model.compile("adam", crossentropy())
    return model


@pytest.mark.parametrize(
    "build",
    [
        lambda: looking_up("adam"),
        lambda: looking_up(keras.optimizers.RMSprop(clipnorm=0.1)),
        lambda: looking_up(keras.optimizers.SGD(0.1, momentum=0.9), embeddings_regularizer="l2"),
        tied,
        pytest.param(lambda: looking_up("adagrad", mask_zero=True), marks=pytest.mark.nightly),
        pytest.param(
            lambda: looking_up(keras.optimizers.AdamW(global_clipnorm=0.1)), marks=pytest.mark.nightly
        ),
    ],
)
def test_sparse_gradients_and_an_uneven_last_batch(build):
    """Keras squares the rows of a word one by one: the gradient stays sparse and keeps their order."""
    x, y = arrays()
    fit_both(build, x, y, validation_data=arrays(VALIDATION_ROWS, 1), shuffle=False)
    fit_both(build, x, y, epochs=1)  # in the same process


def test_two_strategies_in_one_process():
    """TensorFlow numbers the collectives of each from the same number on."""
    first = on_two(lambda: looking_up("sgd"))()
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        second = looking_up("adam")
    expected = looking_up("adam")
    for model, fit in ((first, None), (second, None), (expected, expected.fit)):
        (fit or Trainer(model).fit)(*arrays(), batch_size=32, epochs=2, shuffle=False, verbose=0)
    assert_same_history(second.history.history, expected.history.history)


def test_a_train_step_of_the_users_own_with_sparse_gradients_and_an_uneven_last_batch():
    class Own(keras.Model):
        def __init__(self):
            inner = looking_up()
            super().__init__(inner.input, inner.output)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"train_loss": loss, "batch_mean": tf.reduce_mean(x)}

    def build():
        model = Own()
        model.compile("adam", crossentropy())
        return model

    expected, actual = on_two(build)(), on_two(build)()
    arguments = dict(batch_size=32, epochs=2, shuffle=False, verbose=0)
    x, y = arrays(192 + 12)
    expected.fit(x, y, **arguments)
    Trainer(actual).fit(x, y, **arguments)
    assert_same_history(actual.history.history, expected.history.history)
    assert_same_weights(actual, expected)


def test_compute_loss_of_the_users_own():
    class Own(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean((keras.ops.max(y_pred, axis=1) - keras.ops.cast(y, "float32")) ** 2)

    def build():
        keras.utils.set_random_seed(1)
        model = Own([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
        model.compile("sgd", "mse", metrics=[])
        return model

    fit_both(build, *arrays())


def test_mixed_precision_with_loss_scaling():
    def build():
        keras.utils.set_random_seed(1)
        policy = keras.dtype_policies.DTypePolicy("mixed_float16")
        model = keras.Sequential(
            [
                keras.Input((FEATURES,)),
                keras.layers.Dense(8, activation="relu", dtype=policy),
                keras.layers.Dense(CLASSES, dtype="float32"),
            ]
        )
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=2.0**10)
        model.compile(optimizer, crossentropy(), metrics=["accuracy"])
        return model

    expected, actual = build(), on_two(build)()
    arguments = dict(batch_size=32, epochs=3, verbose=0)
    expected.fit(*arrays(), **arguments)
    Trainer(actual).fit(*arrays(), **arguments)
    assert_same_history(actual.history.history, expected.history.history, 2e-3)
    for a, b in zip(actual.weights, expected.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=2e-3)
    assert_same_on_both(actual)
