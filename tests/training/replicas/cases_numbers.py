"""The numbers of two replicas are those of one device at the same global batch.

`tests/parallel/several_cases.py` has most layers, losses and data.
"""

from tests.training.replicas.two_cpus import STRATEGY, on_two  # isort: skip  # before anything starts TensorFlow

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer
from tests.networks import (
    ROWS,
    VALIDATION_ROWS,
    Buckets,
    arrays,
    assert_same_history,
    assert_same_weights,
    crossentropy,
    linear,
    looking_up,
    sequential,
)


def fit_both(build, make_data=arrays, *, scope=contextlib.nullcontext, **arguments):
    """Fits with Keras on one device and with us on two, and compares everything."""
    arguments = {"batch_size": 32, "epochs": 2, "verbose": 0} | arguments
    expected, actual = build(), on_two(build)()
    expected.fit(*make_data(), **arguments)
    with scope():
        Trainer(actual).fit(*make_data(), **arguments)
    assert_same_history(actual.history.history, expected.history.history)
    assert actual.history.epoch == expected.history.epoch
    assert_same_weights(actual, expected)
    for variable in (*actual.trainable_variables, *actual.optimizer.variables):
        first, second = variable.value.values
        np.testing.assert_array_equal(first.numpy(), second.numpy(), err_msg=variable.path)


def test_tf_data_with_batches_of_an_unknown_size_and_a_single_last_row():
    def data():
        return (tf.data.Dataset.from_tensor_slices(arrays(65)).shuffle(65, seed=3).batch(16),)

    fit_both(sequential, data, batch_size=None, epochs=3, shuffle=False, validation_data=arrays(40, 1))


def test_a_loss_that_is_a_mean_by_weights():
    def build():
        model = sequential(keras.optimizers.SGD(1e-3))
        reduction = "mean_with_sample_weight"
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        model.compile(keras.optimizers.SGD(1e-3), loss)
        return model

    fit_both(build, sample_weight=np.linspace(0, 2, ROWS).astype("float32"), batch_size=50)


# Building inside and training outside is what the other cases do.
@pytest.mark.nightly
def test_inside_the_scope_and_out_of_it():
    fit_both(sequential, scope=STRATEGY.scope, validation_data=arrays(40, 1))


def normalised():
    return linear(
        lambda: keras.layers.Dense(16, activity_regularizer="l2"),
        keras.layers.BatchNormalization,
        lambda: keras.layers.Dropout(0.25),
        metrics=["accuracy"],
    )


def test_batch_normalization_takes_the_statistics_of_each_replicas_rows():
    """As under Keras: each replica normalises with its own mean, and the first one's is kept."""
    x, y = arrays(32)
    model = on_two(normalised)()
    kernel, bias = (np.asarray(w) for w in model.layers[0].weights)
    Trainer(model).fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0)
    hidden = x @ kernel + bias
    norm = model.layers[1]
    means = [part.mean(axis=0) * (1 - norm.momentum) for part in (hidden[:16], hidden[16:])]
    for copy, mean in zip(norm.moving_mean.value.values, means, strict=True):
        np.testing.assert_allclose(copy.numpy(), mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norm.moving_mean.numpy(), means[0], rtol=1e-4, atol=1e-6)


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


def test_a_sparse_gradient_and_a_dense_one_of_one_variable_and_an_uneven_last_batch():
    """Keras squares the rows of a word one by one: the gradient stays sparse and keeps their order."""
    fit_both(tied, validation_data=arrays(VALIDATION_ROWS, 1), shuffle=False)
    fit_both(tied, epochs=1)  # in the same process


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
