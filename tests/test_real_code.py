"""Code that people really write equals Keras at every lag: state outside the model, odd logs, eager steps."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests import networks
from tests.differential import assert_same_run, run_keras, run_ours
from tests.networks import CLASSES, FEATURES, arrays, crossentropy
from tests.real_callbacks import ReadMetrics, TurnKnob
from tests.real_code import BUILDERS

kc = keras.callbacks
X, Y = arrays(70)
VALIDATION = arrays(33, 1)
IN_STEP = {
    "stateful_loss": "running_mean",
    "eager": "run_eagerly",
    "stateful_random": "RandomStandardNormal",
    "validation_changes_the_model": "calls",
}
"""The builders whose models have to be validated in step, and what the message names."""


def dense(*layers, kind=keras.Sequential, **options):
    """Returns a compiled model of a few layers, from the same seed each time."""
    keras.utils.set_random_seed(3)
    model = kind([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), **options)
    return model


def compared(build, callbacks, *, lag=2, epochs=4, **arguments):
    """Trains with Keras and with us, compares everything, and returns our trainer."""
    arguments = (
        dict(batch_size=16, epochs=epochs, validation_data=VALIDATION, validation_batch_size=8) | arguments
    )
    policy = ValidationPolicy(max_lag=lag, overlap="always", workers=3)
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        expected = run_keras(build, callbacks, Path(a), (X, Y), **arguments)
        actual, trainer = run_ours(build, callbacks, Path(b), (X, Y), policy, **arguments)
        assert_same_run(actual, expected)
    return trainer


def reasons(trainer):
    return [message for message in trainer.messages if "validating in step with the training: " in message]


ROLLED_BACK = ["raw_variable", "two_optimizers", "hidden_teacher", "generator_layer"]
"""Builders of models with something outside them, each of another kind."""


@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in ROLLED_BACK])
@pytest.mark.by_default("validation_changes_the_model")
def test_a_callback_that_sets_what_the_step_reads_is_obeyed_at_once(name):
    trainer = compared(BUILDERS[name], lambda d: [TurnKnob(), ReadMetrics(d / "metrics.notes")])
    found = reasons(trainer)
    assert bool(found) == (name in IN_STEP)
    assert all(IN_STEP[name] in message for message in found)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.* conditioned on metric")
@pytest.mark.parametrize("name", ROLLED_BACK)
@pytest.mark.by_default("hidden_teacher")
def test_a_rollback_takes_what_is_outside_the_model_back_and_what_is_set_there_is_obeyed(name):
    trainer = compared(
        BUILDERS[name],
        lambda d: (
            [
                TurnKnob(),
                ReadMetrics(d / "metrics.notes"),
                kc.ReduceLROnPlateau("val_loss", patience=0, factor=0.5, min_delta=10.0, cooldown=1),
                kc.EarlyStopping("val_loss", patience=2, min_delta=10.0, restore_best_weights=True),
            ]
        ),
    )
    assert any("back to the end" in message for message in trainer.messages)
    assert not reasons(trainer)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["raw_variable", "two_optimizers", "closure_loss"])
def test_a_resumed_training_has_what_is_outside_the_model(name, tmp_path):
    def fit(epochs, directory):
        model = BUILDERS[name]()
        trainer = Trainer(model, validation=ValidationPolicy(overlap="always"))
        arguments = {"batch_size": 16, "epochs": epochs, "verbose": 0, "validation_data": VALIDATION}
        history = trainer.fit(X, Y, callbacks=[TurnKnob()], resume=tmp_path / directory, **arguments)
        return history.history, [np.sum(keras.ops.convert_to_numpy(k)) for k in vars(model)["knob"]]

    unbroken, knob = fit(4, "a")
    fit(2, "b")
    resumed, again = fit(4, "b")
    assert resumed == unbroken
    assert again == knob


@pytest.mark.nightly
def test_a_random_number_of_the_validation_is_drawn_once_as_by_keras():
    """`tf.random` in a test step: in step, and the same numbers from the same seed."""

    class Drawing(keras.layers.Layer):
        def call(self, x):
            return x + tf.random.uniform([])

    def build():
        keras.backend.clear_session()
        return dense(Drawing())

    trainer = compared(build, lambda d: [], shuffle=False)
    assert "RandomUniform" in reasons(trainer)[0]
    assert "SeedGenerator" in reasons(trainer)[0]


@pytest.mark.nightly
def test_what_a_function_outside_tensorflow_counts_is_counted_in_step():
    counted = []

    class Counting(keras.layers.Layer):
        def call(self, x):
            tf.py_function(lambda: counted.append(1), [], [])
            return x

    def build():
        counted.clear()
        return dense(Counting(name="counting"))

    class Read(kc.Callback):
        def __init__(self, path):
            super().__init__()
            self.path = path

        def on_epoch_end(self, epoch, logs=None):
            with self.path.open("a") as file:
                file.write(f"{len(counted)}\n")

    trainer = compared(build, lambda d: [Read(d / "counted.notes")])
    assert "counting" in reasons(trainer)[0]
    assert "add_weight" in reasons(trainer)[0]


class Halve(kc.Callback):
    """Halves a variable, which the data reads, after each epoch."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        weight.assign(1.0)

    def on_epoch_end(self, epoch, logs=None):
        self.weight.assign(self.weight / 2.0)


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.by_default("2")
def test_a_pipeline_that_reads_a_variable_reads_it_when_keras_does(lag):
    """Training data runs ahead only while no callback may set it; validation data is read in step."""
    weight = tf.Variable(1.0)

    def pipeline(arrays, size):
        return tf.data.Dataset.from_tensor_slices(arrays).batch(size).map(lambda x, y: (x * weight, y))

    def fit(fit):
        arguments = {"epochs": 4, "verbose": 0, "shuffle": False, "callbacks": [Halve(weight)]}
        return fit(pipeline((X, Y), 16), validation_data=pipeline(VALIDATION, 8), **arguments).history

    policy = ValidationPolicy(max_lag=lag, overlap="always")
    networks.assert_same_history(fit(Trainer(dense(), validation=policy).fit), fit(dense().fit))


def test_preprocess_may_read_a_variable_that_a_callback_sets():
    weight, histories = tf.Variable(1.0), []
    for lag in (0, 2):
        policy = ValidationPolicy(max_lag=lag, overlap="always", workers=2)
        trainer = Trainer(dense(), validation=policy, preprocess=lambda x, y: (x * weight, y))
        arguments = {"batch_size": 16, "epochs": 4, "verbose": 0, "validation_data": VALIDATION}
        histories.append(trainer.fit(X, Y, callbacks=[Halve(weight)], **arguments).history)
        assert not reasons(trainer)
    assert any("back to the end" in message for message in trainer.messages)
    networks.assert_same_history(histories[1], histories[0])


def test_reporting_takes_logs_of_any_kind(capsys):
    """Verbose output, the closing table, and logs that are no numbers at all."""

    class Odd(keras.Sequential):
        def train_step(self, data):
            super().train_step(data)
            return {"text": tf.constant("a word"), "matrix": tf.ones([2, 3]), "none": tf.constant(True)}

    history = Trainer(dense(kind=Odd)).fit(X, Y, epochs=2, validation_data=VALIDATION, verbose=2).history
    assert np.shape(history["matrix"]) == (2, 2, 3)
    assert "[1.0000 1.0000 1.0000 1.0000 ... 6 values]" in capsys.readouterr().out


@pytest.mark.nightly
def test_metrics_keep_the_state_of_an_evaluation():
    model = BUILDERS["vector_metric"]()
    model.fit(X, Y, verbose=0)
    expected = model.evaluate(*VALIDATION, verbose=0, return_dict=True)
    state = [np.asarray(keras.ops.convert_to_numpy(v)) for v in model.metrics_variables]
    model.reset_metrics()
    actual = Trainer(model).evaluate(*VALIDATION, verbose=0, return_dict=True)
    np.testing.assert_allclose(actual["f1"], expected["f1"], rtol=1e-5)
    for variable, value in zip(model.metrics_variables, state, strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), value, rtol=1e-5)


class Kept(keras.metrics.Metric):
    """Keeps its best value over all epochs: `reset_state` sets a part of its state back."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.now = self.add_variable((), "zeros", name="now")
        self.best = self.add_variable((), "zeros", name="best")

    def update_state(self, y, p, sample_weight=None):
        self.now.assign(keras.ops.maximum(self.now, keras.ops.max(p)))
        self.best.assign(keras.ops.maximum(self.best, self.now))

    def result(self):
        return self.best + 0.0

    def reset_state(self):
        self.now.assign(0.0)


class Plain(keras.metrics.Mean):
    """Its result reads a plain attribute, which a callback sets in each epoch."""

    scale = 1.0

    def update_state(self, y, p, sample_weight=None):
        return super().update_state(p)

    def result(self):
        return super().result() * self.scale


class Rescale(kc.Callback):
    def __init__(self, metric):
        super().__init__()
        self.metric = metric

    def on_epoch_end(self, epoch, logs=None):
        self.metric.scale = 2.0 + epoch


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [Kept, Plain])
@pytest.mark.by_default("Kept")
def test_a_metric_may_depend_on_more_than_its_epoch(kind):
    metrics = []

    def build():
        metrics.append(kind(name="m"))
        return dense(metrics=metrics[-1:])

    assert reasons(compared(build, lambda d: [Rescale(metrics[-1])])) == []


def test_a_test_function_of_the_users_own_is_called():
    class Own(keras.Sequential):
        def make_test_function(self, force=False):
            self.test_function = lambda iterator: {"constant": 3.0}

    trainer = Trainer(dense(kind=Own))
    history = trainer.fit(X, Y, verbose=0, validation_data=VALIDATION)
    assert history.history["val_constant"] == [3.0]
    assert "makes its test function itself" in reasons(trainer)[0]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Even though the .*run_functions_eagerly")
def test_functions_that_run_eagerly_are_eager_steps():
    tf.config.run_functions_eagerly(True)
    try:
        trainer = compared(BUILDERS["vector_metric"], lambda d: [], epochs=2)
    finally:
        tf.config.run_functions_eagerly(False)
    assert "eagerly" in reasons(trainer)[0]


def test_logs_may_hold_nothing_and_lists():
    class Odd(keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "none": None, "list": [1.0, 2.0]}

        def test_step(self, data):
            return {**super().test_step(data), "none": None}

    expected, actual = (
        fit(X, Y, epochs=2, verbose=0, validation_data=VALIDATION).history
        for fit in (dense(kind=Odd).fit, Trainer(dense(kind=Odd)).fit)
    )
    assert list(actual) == list(expected)
    assert actual["none"] == expected["none"] == [None, None]
    np.testing.assert_array_equal(actual["list"], expected["list"])


# whole_fits/test_ended_validations.py ends validations of each kind of data.
@pytest.mark.nightly
def test_a_validation_that_is_ended_as_it_begins_has_one_batch():
    class Ends(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            self.model.stop_evaluating = True

    x, y = networks.arrays(48)
    arguments = {"validation_data": (x, y), "validation_batch_size": 8, "epochs": 2, "verbose": 0}
    expected, actual = networks.sequential(), networks.sequential()
    theirs = expected.fit(x, y, callbacks=[Ends()], **arguments)
    ours = Trainer(actual).fit(x, y, callbacks=[Ends()], **arguments)
    networks.assert_same_history(ours.history, theirs.history)


@pytest.mark.nightly
@pytest.mark.parametrize("growth", [1, 2, 4])
@pytest.mark.parametrize("rows", [64, 70])
def test_a_loss_scale_that_grows_is_the_one_of_the_step(growth, rows):
    """Before it is built, the optimizer scales by another number than after.

    64 rows make whole batches, of 70 the last is smaller.
    """
    x, y = networks.arrays(rows)

    def run(fit):
        keras.backend.clear_session()  # which numbers the names again
        model = dense()
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.01), dynamic_growth_steps=growth
        )
        model.compile(optimizer, networks.crossentropy(), metrics=["accuracy"])
        fit(model)(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return model

    ours, theirs = run(lambda model: Trainer(model).fit), run(lambda model: model.fit)
    networks.assert_same_weights(ours, theirs)
    assert float(ours.optimizer.dynamic_scale) == float(theirs.optimizer.dynamic_scale)
    names = [[variable.path for variable in model.optimizer.variables] for model in (ours, theirs)]
    assert names[0] == names[1]


# inspection/test_effects.py shows that nothing in it hinders that.
@pytest.mark.nightly
def test_a_ctc_loss_is_validated_beside_the_training():
    rng = np.random.default_rng(0)
    x, y = rng.random((32, 10, 6), "float32"), rng.integers(1, 5, (32, 4))

    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((10, 6)), keras.layers.Dense(5)])
        model.compile("adam", keras.losses.CTC())
        return model

    arguments = dict(epochs=3, batch_size=8, verbose=0, validation_data=(x, y))
    expected, trainer = build(), Trainer(build(), validation=ValidationPolicy(overlap="always"))
    expected.fit(x, y, **arguments)
    history = trainer.fit(x, y, **arguments)
    networks.assert_same_history(history.history, expected.history.history)
    assert not any("in step" in message for message in trainer.messages)
