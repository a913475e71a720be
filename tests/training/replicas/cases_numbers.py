"""The numbers of two replicas are those of one device at the same global batch."""

from __future__ import annotations

from tests.training.replicas.two_cpus import STRATEGY, on_two  # isort: skip  # before anything starts TensorFlow

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.differential import read_files
from tests.networks import (
    CLASSES,
    FEATURES,
    arrays,
    assert_alike,
    assert_same_history,
    assert_same_weights,
    crossentropy,
    sequential,
)
from tests.pools import pooled

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.02),
}


sequential_on_two = pooled(on_two(sequential))


def fit_both(build, *data, rtol=1e-5, policy=None, execution=None, **arguments):
    """Fits with Keras on one device and with us on two, and compares everything."""
    arguments = {"batch_size": 32, "epochs": 2, "verbose": 0} | arguments
    expected = pooled(build)() if build is sequential else build()
    actual = sequential_on_two() if build is sequential else on_two(build)()
    expected.fit(*data, **arguments)
    trainer = Trainer(actual, validation=policy, execution=execution)
    trainer.fit(*data, **arguments)
    assert_same_history(actual.history.history, expected.history.history, rtol)
    assert actual.history.epoch == expected.history.epoch
    assert_same_weights(actual, expected, rtol)
    assert_same_on_both(actual)
    return actual


def assert_same_on_both(model):
    for variable in (*model.trainable_variables, *model.optimizer.variables):
        first, second = variable.value.values
        np.testing.assert_array_equal(first.numpy(), second.numpy(), err_msg=variable.path)


LAGS = [("adamw", 1)]
MORE_LAGS = [("sgd", 0), ("sgd", 1), ("adam", 0), ("adam", 1), ("adamw", 0)]


@pytest.mark.parametrize(
    ("name", "max_lag"), [*LAGS, *(pytest.param(*case, marks=pytest.mark.nightly) for case in MORE_LAGS)]
)
def test_optimizers_with_early_stopping_checkpoints_and_an_uneven_last_batch(name, max_lag, tmp_path):
    """203 rows in batches of 32: shares of 16, and of 6 and 5 rows in the last batch."""
    expected, actual = (place(lambda: sequential(OPTIMIZERS[name]()))() for place in (lambda b: b, on_two))
    policy = ValidationPolicy(max_lag=max_lag)
    for run, model in (("keras", expected), ("ours", actual)):
        fit = model.fit if run == "keras" else Trainer(model, validation=policy).fit
        callbacks = [
            keras.callbacks.EarlyStopping(
                "val_loss", patience=1, min_delta=0.05, restore_best_weights=True, start_from_epoch=2
            ),
            keras.callbacks.ModelCheckpoint(
                tmp_path / f"{run}.weights.h5", save_best_only=True, save_weights_only=True
            ),
        ]
        fit(
            *arrays(), batch_size=32, epochs=12, validation_data=arrays(91, 1), callbacks=callbacks, verbose=0
        )
    assert len(expected.history.epoch) < 12
    assert actual.history.epoch == expected.history.epoch
    assert_same_history(actual.history.history, expected.history.history)
    assert_same_weights(actual, expected)
    assert_same_on_both(actual)
    saved = read_files(tmp_path)
    assert_alike(saved["ours.weights.h5"], saved["keras.weights.h5"])


def test_a_last_batch_with_fewer_rows_than_replicas():
    x, y = arrays(33)
    fit_both(sequential, x, y, shuffle=False)


def test_tf_data_with_batches_of_an_unknown_size_and_a_single_last_row():
    def data():
        return tf.data.Dataset.from_tensor_slices(arrays(65)).shuffle(65, seed=3).batch(16)

    expected, actual = pooled(sequential)(), sequential_on_two()
    arguments = dict(epochs=3, shuffle=False, validation_data=arrays(40, 1), verbose=0)
    expected.fit(data(), **arguments)
    Trainer(actual).fit(data(), **arguments)
    assert_same_history(actual.history.history, expected.history.history)
    assert_same_weights(actual, expected)


@pytest.mark.parametrize(
    "reduction", [pytest.param("sum", marks=pytest.mark.nightly), "mean_with_sample_weight"]
)
def test_losses_that_are_no_mean_over_the_rows(reduction):
    def build():
        model = sequential(keras.optimizers.SGD(1e-3))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        model.compile(keras.optimizers.SGD(1e-3), loss)
        return model

    x, y = arrays()
    fit_both(build, x, y, sample_weight=np.linspace(0, 2, len(x)).astype("float32"), batch_size=50)


def test_clipping_by_the_norm_of_the_whole_gradient():
    fit_both(lambda: sequential(keras.optimizers.SGD(0.5, global_clipnorm=0.05)), *arrays())


# Building inside and training outside is what the other cases do.
@pytest.mark.nightly
def test_inside_the_scope_and_out_of_it():
    expected, actual = pooled(sequential)(), sequential_on_two()
    arguments = dict(epochs=2, validation_data=arrays(40, 1), verbose=0)
    expected.fit(*arrays(), **arguments)
    with STRATEGY.scope():
        Trainer(actual).fit(*arrays(), **arguments)
    assert_same_history(actual.history.history, expected.history.history)
    assert_same_weights(actual, expected)


def normalised(synchronized):
    keras.utils.set_random_seed(7)
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(16, activity_regularizer="l2"),
        keras.layers.BatchNormalization(synchronized=synchronized),
        keras.layers.Dropout(0.25),
        keras.layers.Dense(CLASSES),
    ]
    model = keras.Sequential(layers)
    model.compile("sgd", crossentropy(), metrics=["accuracy"])
    return model


def test_batch_normalization_takes_the_statistics_of_each_replicas_rows():
    """As under Keras: each replica normalises with its own mean, and the first one's is kept."""
    x, y = arrays(32)
    model = on_two(lambda: normalised(False))()
    kernel, bias = (np.asarray(w) for w in model.layers[0].weights)
    Trainer(model).fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0)
    hidden = x @ kernel + bias
    norm = model.layers[1]
    means = [part.mean(axis=0) * (1 - norm.momentum) for part in (hidden[:16], hidden[16:])]
    for copy, mean in zip(norm.moving_mean.value.values, means, strict=True):
        np.testing.assert_allclose(copy.numpy(), mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norm.moving_mean.numpy(), means[0], rtol=1e-4, atol=1e-6)


def test_synchronized_batch_normalization_equals_one_device():
    def build(synchronized):
        return lambda: normalised(synchronized)

    expected, actual = build(False)(), on_two(build(True))()
    arguments = dict(batch_size=32, epochs=3, verbose=0)
    x, y = arrays(192)
    expected.fit(x, y, **arguments)
    Trainer(actual).fit(x, y, **arguments)
    assert_same_history(actual.history.history, expected.history.history, 1e-4)
    assert_same_weights(actual, expected, 1e-4)
