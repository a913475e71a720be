"""Contract C2: the numbers are those of `keras.Model.fit`, whatever the workers, the model and the data."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train.models import mnist_data
from tests import pools
from tests.networks import (
    CLASSES,
    FEATURES,
    ROWS,
    VALIDATION_ROWS,
    Outcome,
    arrays,
    assert_same_history,
    assert_same_outcome,
    assert_same_weights,
    crossentropy,
    functional,
    functional_data,
    sequential,
    subclassed,
)
from tests.pools import pooled
from tests.validation.counting import counting


def fit_both(build, workers, *args, max_lag=1, traced=False, **arguments):
    """Fits two models from the same seed, one with Keras and one with us, and compares everything.

    Ours is new unless it may be `traced`, because the test shows what no first fit is needed for.
    """
    expected = pooled(build)() if build in (sequential, functional) else build()
    expected.fit(*args, verbose=0, **arguments)
    actual = pooled(build)() if traced else build()
    policy = ValidationPolicy(workers=workers, max_lag=max_lag)
    Trainer(actual, validation=policy).fit(*args, verbose=0, **arguments)
    assert_same_history(actual.history.history, expected.history.history)
    assert actual.history.epoch == expected.history.epoch
    assert_same_weights(actual, expected)
    return actual


def mnist_functional():
    keras.utils.set_random_seed(3)
    top, bottom = keras.Input((14, 28, 1), name="top"), keras.Input((14, 28, 1), name="bottom")
    halves = [keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(half)) for half in (top, bottom)]
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()(halves))
    digit = keras.layers.Dense(10, name="digit")(hidden)
    odd = keras.layers.Dense(1, activation="sigmoid", name="odd")(hidden)
    model = keras.Model([top, bottom], [digit, odd])
    model.compile(
        "adam",
        [crossentropy(), keras.losses.BinaryCrossentropy()],
        metrics=[["accuracy"], ["accuracy", keras.metrics.AUC(name="auc")]],
    )
    return model


def halves(x, y):
    return [x[:, :14], x[:, 14:]], [y, (y % 2)[:, None]]


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [2, 7])
def test_mnist_with_any_number_of_workers_equals_keras(workers):
    digits = mnist_data._embedded_digits("a test needs no more")
    x, y = halves(digits.x_train[:1000], digits.y_train[:1000])
    validation = halves(digits.x_test[:333], digits.y_test[:333])
    fit_both(
        mnist_functional, workers, x, y, batch_size=64, epochs=2, shuffle=False, validation_data=validation
    )


@pytest.mark.nightly
def test_lag_does_not_change_the_numbers():
    x, y = arrays()
    arguments = dict(epochs=5, batch_size=32, validation_data=arrays(VALIDATION_ROWS, 1), verbose=0)
    model = pools.sequential()
    model.fit(x, y, **arguments)
    expected = Outcome.of(model)
    for max_lag in (0, 1, 3):
        pools.take_back()
        actual = pools.sequential()
        Trainer(actual, validation=ValidationPolicy(workers=2, max_lag=max_lag)).fit(x, y, **arguments)
        assert_same_outcome(actual, expected)


@pytest.mark.by_default("False")
@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_rows_come_in_the_order_of_keras_for_the_same_seed(shuffle):
    x, y = arrays()
    fit_both(sequential, 1, x, y, epochs=3, batch_size=32, shuffle=shuffle, validation_split=0.3, traced=True)


def mixed_precision():
    keras.utils.set_random_seed(1)
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    hidden = keras.layers.Dense(8, activation="relu", dtype=policy)
    model = keras.Sequential([keras.Input((12,)), hidden, keras.layers.Dense(4, dtype="float32")])
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


def compiled_by_xla():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), jit_compile=True)
    return model


def weights(rows, seed):
    return np.random.default_rng(seed).random(rows).astype("f")


MANY, FEW = (arrays(VALIDATION_ROWS, 1), arrays(40, 1))
# A builder, the number of workers, the training data and other arguments of `fit`.
FITS = {
    "two inputs and outputs in dicts": (
        *(functional, 3, functional_data()),
        {"validation_data": functional_data(VALIDATION_ROWS, 1)},
    ),
    "sample weights, a subclassed model that is not built": (
        *(subclassed, 3, arrays()),
        {
            "epochs": 3,
            "batch_size": 50,
            "sample_weight": weights(ROWS, 2),
            "validation_data": (*MANY, weights(VALIDATION_ROWS, 3)),
            "validation_batch_size": 17,
        },
    ),
    "class weights": (sequential, 2, arrays(), {"class_weight": {0: 0.2, 1: 1.0, 2: 3.0, 3: 1.5}}),
    "more workers than batches": (sequential, 7, arrays(), {"validation_data": FEW}),
    "validation in every second epoch": (
        *(sequential, 2, arrays()),
        {"epochs": 5, "validation_freq": 2, "validation_data": FEW, "traced": True},
    ),
    "validation in the epochs of a list": (
        *(sequential, 2, arrays()),
        {"epochs": 5, "validation_freq": [1, 4], "validation_data": FEW, "traced": True},
    ),
    "a validation that changes the model": (counting, 3, arrays(), {"epochs": 3, "validation_data": MANY}),
    "mixed precision": (mixed_precision, 2, arrays(), {"validation_data": MANY}),
    "run_eagerly": (lambda: sequential(run_eagerly=True), 2, arrays(70), {"validation_data": FEW}),
    # in batches of two sizes, each of which XLA compiles
    "jit_compile": (compiled_by_xla, 2, arrays(75), {"validation_data": arrays(32, 1)}),
}


@pytest.mark.by_default("validation in the epochs of a list", "validation in every second epoch")
@pytest.mark.parametrize(("build", "workers", "data", "arguments"), FITS.values(), ids=FITS)
def test_a_fit_equals_that_of_keras(build, workers, data, arguments):
    fit_both(build, workers, *data, **{"epochs": 2, **arguments})


@pytest.mark.nightly
def test_initial_epoch_and_fitting_twice():
    x, y = arrays()
    expected, actual = pooled(sequential)(), sequential()
    trainer = Trainer(actual)
    for model, fit in ((expected, expected.fit), (actual, trainer.fit)):
        fit(x, y, epochs=2, shuffle=False, validation_split=0.2, verbose=0)
        fit(x, y, epochs=4, initial_epoch=2, shuffle=False, validation_split=0.2, verbose=0)
        assert model.history.epoch == [2, 3]
    assert_same_history(actual.history.history, expected.history.history)
    assert_same_weights(actual, expected)


@pytest.mark.nightly
def test_a_metric_of_unknown_state_is_evaluated_by_one_worker():
    class Largest(keras.metrics.Metric):
        """The largest label seen: its state is a maximum, and adding two of them would be wrong."""

        def __init__(self):
            super().__init__(name="largest")
            self.value = self.add_weight(name="value", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(keras.ops.maximum(self.value, keras.ops.cast(keras.ops.max(y_true), "float32")))

        def result(self):
            return self.value + 0.0

    x, y = arrays()
    model = fit_both(
        lambda: sequential(metrics=[Largest()]), 7, x, y, epochs=2, validation_data=arrays(VALIDATION_ROWS, 1)
    )
    assert model.history.history["val_largest"] == [3.0, 3.0]


@pytest.mark.nightly
@pytest.mark.by_default("arrays")
@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("data", ["arrays", "unknown length", "unknown length, a step a call", "eager"])
def test_custom_train_and_test_steps_with_logs_of_their_own(data):
    class Custom(keras.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            return {"train_loss": logs["loss"], "batch_mean": tf.reduce_mean(data[0])}

        def test_step(self, data):
            super().test_step(data)
            return {"batch_mean": tf.reduce_mean(data[0])}

    def build():
        keras.utils.set_random_seed(1)
        model = Custom([keras.Input((12,)), keras.layers.Dense(4)])
        model.compile("sgd", crossentropy())
        return model

    x, y = arrays()
    if data != "arrays":  # the call that finds the end makes no step
        x, y = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).filter(lambda x, y: True), None
    callbacks = (
        [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: logs.copy().clear())]
        if "step" in data
        else []
    )
    arguments = {"epochs": 2, "shuffle": False, "validation_data": arrays(VALIDATION_ROWS, 1)}
    expected, actual = build(), build()
    expected.run_eagerly = actual.run_eagerly = data == "eager"
    plain = expected.fit(x, y, verbose=0, **arguments)
    history = Trainer(actual, validation=ValidationPolicy(workers=3)).fit(
        x, y, verbose=0, callbacks=callbacks, **arguments
    )
    assert_same_history(history.history, plain.history)
    assert_same_weights(actual, expected)


def test_a_stop_inside_an_epoch_begins_no_other_epoch():
    """`stop_training` is set inside epoch 0, whose validation is then still to be delivered."""
    x, y = arrays()
    x[40, 0] = np.inf
    arguments = {
        "epochs": 3,
        "batch_size": 16,
        "shuffle": False,
        "validation_data": arrays(40, 1),
        "verbose": 0,
    }
    models = [pooled(sequential)(), sequential()]
    for run in (models[0].fit, Trainer(models[1]).fit):
        run(x, y, callbacks=[keras.callbacks.TerminateOnNaN()], **arguments)
    assert models[1].history.epoch == models[0].history.epoch == [0]
    assert_same_history(models[1].history.history, models[0].history.history)
    assert_same_weights(models[1], models[0])


@pytest.mark.nightly
def test_states_of_recurrent_layers_go_through_training_and_validation_as_under_keras():
    """They belong to no list of the model's variables; a validation begins with those of the training."""

    def make():
        keras.utils.set_random_seed(3)
        layers = [keras.Input(batch_shape=(16, FEATURES, 1)), keras.layers.GRU(4, stateful=True)]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
        model.compile(keras.optimizers.SGD(0.1), crossentropy())
        return model

    (x, y), validation = arrays(96), arrays(1024, 1)
    arguments = dict(batch_size=16, epochs=3, validation_data=validation, validation_batch_size=16, verbose=0)
    expected, actual = make(), make()
    history = expected.fit(x, y, **arguments).history
    assert_same_history(Trainer(actual).fit(x, y, **arguments).history, history)
    assert_same_weights(actual, expected)
    states = [keras.ops.convert_to_numpy(model.layers[0].states[0]) for model in (actual, expected)]
    np.testing.assert_allclose(*states, rtol=1e-5, atol=1e-6)
    assert np.abs(states[0]).max() > 0.01
