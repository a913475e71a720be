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


@pytest.fixture(scope="module")
def mnist():
    """Real images: 1,000 to train on and 333 to validate on."""
    digits = mnist_data._embedded_digits("a test needs no more")
    return (digits.x_train[:1000], digits.y_train[:1000]), (digits.x_test[:333], digits.y_test[:333])


def mnist_sequential():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10),
        ]
    )
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


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


class MnistNet(keras.Model):
    def __init__(self):
        super().__init__()
        self.scale, self.flat = keras.layers.Rescaling(1 / 255), keras.layers.Flatten()
        self.hidden = keras.layers.Dense(32, kernel_regularizer=keras.regularizers.L2(1e-3))
        self.norm, self.drop = keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)
        self.head = keras.layers.Dense(10)

    def call(self, x, training=False):
        hidden = self.norm(self.hidden(self.flat(self.scale(x))), training=training)
        self.add_loss(1e-3 * keras.ops.mean(hidden**2))
        return self.head(self.drop(keras.ops.relu(hidden), training=training))


def mnist_subclassed():
    keras.utils.set_random_seed(3)
    model = MnistNet()
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


def halves(x, y):
    return [x[:, :14], x[:, 14:]], [y, (y % 2)[:, None]]


MNIST = [(mnist_sequential, 2), (mnist_functional, 7), (mnist_subclassed, 2)]
MORE_MNIST = [(mnist_sequential, 7), (mnist_functional, 2), (mnist_subclassed, 7)]


# Two outputs, seven workers and unbuilt models are each tried below.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("build", "workers"), [*MNIST, *(pytest.param(*case, marks=pytest.mark.nightly) for case in MORE_MNIST)]
)
@pytest.mark.by_default("mnist_functional-7")
def test_mnist_with_any_number_of_workers_equals_keras(build, workers, mnist):
    """The other tests have one worker and three."""
    (x, y), (xv, yv) = mnist
    if build is mnist_functional:
        (x, y), (xv, yv) = halves(x, y), halves(xv, yv)
    arguments = dict(batch_size=64, epochs=2, shuffle=False, validation_data=(xv, yv), verbose=0)
    expected = build()
    expected.fit(x, y, **arguments)
    actual = build()
    Trainer(actual, validation=ValidationPolicy(workers=workers)).fit(x, y, **arguments)
    assert_same_history(actual.history.history, expected.history.history)
    assert_same_weights(actual, expected)


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


@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_rows_come_in_the_order_of_keras_for_the_same_seed(shuffle):
    x, y = arrays()
    fit_both(sequential, 1, x, y, epochs=3, batch_size=32, shuffle=shuffle, validation_split=0.3, traced=True)


def test_two_inputs_and_outputs_in_dicts():
    x, y = functional_data()
    fit_both(functional, 3, x, y, epochs=2, validation_data=functional_data(VALIDATION_ROWS, 1))


def test_sample_weights_and_unbuilt_subclassed_model():
    x, y = arrays()
    xv, yv = arrays(VALIDATION_ROWS, 1)
    rng = np.random.default_rng(2)
    fit_both(
        subclassed,
        3,
        x,
        y,
        epochs=3,
        batch_size=50,
        sample_weight=rng.random(len(x)).astype("f"),
        validation_data=(xv, yv, rng.random(len(xv)).astype("f")),
        validation_batch_size=17,
    )


def test_class_weight():
    x, y = arrays()
    fit_both(sequential, 2, x, y, epochs=2, class_weight={0: 0.2, 1: 1.0, 2: 3.0, 3: 1.5})


def test_validation_frequency_leaves_gaps():
    x, y = arrays()
    for often in (2, [1, 4]):
        fit_both(
            sequential,
            2,
            x,
            y,
            epochs=5,
            validation_freq=often,
            validation_data=arrays(40, 1),
            traced=True,
        )


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


def test_more_workers_than_batches():
    x, y = arrays()
    fit_both(sequential, 7, x, y, epochs=2, validation_data=arrays(40, 1))


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
    actual.run_eagerly = data == "eager"
    plain = expected.fit(x, y, verbose=0, **arguments)
    history = Trainer(actual, validation=ValidationPolicy(workers=3)).fit(
        x, y, verbose=0, callbacks=callbacks, **arguments
    )
    assert_same_history(history.history, plain.history)
    # Of Keras's optimizer the counter goes on where a step finds no data.
    for ours, theirs in zip(actual.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_validation_that_changes_the_model_is_done_as_keras_does_it():
    x, y = arrays()
    fit_both(counting, 3, x, y, epochs=3, validation_data=arrays(VALIDATION_ROWS, 1))


def test_mixed_precision():
    def build():
        keras.utils.set_random_seed(1)
        policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
        model = keras.Sequential(
            [
                keras.Input((12,)),
                keras.layers.Dense(8, activation="relu", dtype=policy),
                keras.layers.Dense(4, dtype="float32"),
            ]
        )
        model.compile("adam", crossentropy(), metrics=["accuracy"])
        return model

    x, y = arrays()
    fit_both(build, 2, x, y, epochs=2, validation_data=arrays(VALIDATION_ROWS, 1))


def test_run_eagerly():
    x, y = arrays(70)
    fit_both(lambda: sequential(run_eagerly=True), 2, x, y, epochs=2, validation_data=arrays(40, 1))


def test_jit_compile():
    def build():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
        model.compile("sgd", crossentropy(), jit_compile=True)
        return model

    x, y = arrays(75)  # in batches of two sizes, which XLA compiles each
    fit_both(build, 2, x, y, epochs=2, validation_data=arrays(32, 1))


# validation/test_runner.py compares with `evaluate` on every kind of data.
@pytest.mark.nightly
def test_evaluate_equals_keras():
    model = subclassed()
    x, y = arrays()
    model.fit(x, y, epochs=1, verbose=0)
    trainer = Trainer(model, validation=ValidationPolicy(workers=3))
    expected = model.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)
    actual = trainer.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)
    assert_same_history(actual, expected)
    np.testing.assert_allclose(trainer.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-6)


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
