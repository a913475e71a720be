"""Code that people really write equals Keras at every lag: state outside the model, odd logs, eager steps."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.differential import assert_same_run, run_keras, run_ours
from tests.networks import CLASSES, FEATURES, arrays, assert_alike, assert_same_history, crossentropy
from tests.real_callbacks import ReadMetrics, TurnKnob
from tests.real_code import BUILDERS
from tests.whole_fits.comparing import assert_as_keras, in_turn

kc = keras.callbacks
X, Y = arrays(70)
VALIDATION = arrays(33, 1)
AHEAD = ValidationPolicy(max_lag=2, overlap="always", workers=3)
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


def compared(build, callbacks=lambda directory: [], *, epochs=4, **arguments):
    """Trains with Keras and with us, compares everything, and returns our trainer."""
    given = dict(batch_size=16, epochs=epochs, validation_data=VALIDATION, validation_batch_size=8)
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        expected = run_keras(build, callbacks, Path(a), (X, Y), **given | arguments)
        actual, trainer = run_ours(build, callbacks, Path(b), (X, Y), AHEAD, **given | arguments)
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
        lambda d: [
            *(TurnKnob(), ReadMetrics(d / "metrics.notes")),
            kc.ReduceLROnPlateau("val_loss", patience=0, factor=0.5, min_delta=10.0, cooldown=1),
            kc.EarlyStopping("val_loss", patience=2, min_delta=10.0, restore_best_weights=True),
        ],
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


class Drawing(keras.layers.Layer):
    """Draws with `tf.random` in a test step too: in step, and the same numbers from the same seed."""

    def call(self, x):
        return x + tf.random.uniform([])


class Counting(keras.layers.Layer):
    """Counts its calls in Python, outside TensorFlow."""

    counted: list[int] = []

    def call(self, x):
        tf.py_function(lambda: self.counted.append(1), [], [])
        return x


class Read(kc.Callback):
    """Writes down what has been counted."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        with self.path.open("a") as file:
            file.write(f"{len(Counting.counted)}\n")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "said"), [(Drawing, ("RandomUniform", "SeedGenerator")), (Counting, ("counting", "add_weight"))]
)
def test_what_a_step_draws_and_does_outside_tensorflow_is_done_in_step(kind, said):
    def build():
        keras.backend.clear_session()
        Counting.counted.clear()
        return dense(kind(name=kind.__name__.lower()))

    (first, *_) = reasons(compared(build, lambda d: [Read(d / "counted.notes")], shuffle=False))
    assert all(word in first for word in said)


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

    def run(trained):
        given = {"epochs": 4, "verbose": 0, "shuffle": False, "callbacks": [Halve(weight)]}
        trained.fit(pipeline((X, Y), 16), validation_data=pipeline(VALIDATION, 8), **given)

    assert_as_keras(run, ValidationPolicy(max_lag=lag, overlap="always"), build=dense)


def test_preprocess_may_read_a_variable_that_a_callback_sets():
    weight, histories = tf.Variable(1.0), []
    for lag in (0, 2):
        policy = ValidationPolicy(max_lag=lag, overlap="always", workers=2)
        trainer = Trainer(dense(), validation=policy, preprocess=lambda x, y: (x * weight, y))
        arguments = {"batch_size": 16, "epochs": 4, "verbose": 0, "validation_data": VALIDATION}
        histories.append(trainer.fit(X, Y, callbacks=[Halve(weight)], **arguments).history)
        assert not reasons(trainer)
    assert any("back to the end" in message for message in trainer.messages)
    assert_same_history(histories[1], histories[0])


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
        trainer = compared(BUILDERS["vector_metric"], epochs=2)
    finally:
        tf.config.run_functions_eagerly(False)
    assert "eagerly" in reasons(trainer)[0]


def test_logs_may_hold_nothing_and_lists():
    class Odd(keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "none": None, "list": [1.0, 2.0]}

        def test_step(self, data):
            return {**super().test_step(data), "none": None}

    def run(trained):
        return dict(trained.fit(X, Y, epochs=2, verbose=0, validation_data=VALIDATION).history)

    expected, actual, _ = in_turn(run, lambda: dense(kind=Odd), ValidationPolicy())
    assert_alike(actual, expected)
    assert actual["none"] == [None, None]


@pytest.mark.nightly
@pytest.mark.parametrize("growth", [1, 2, 4])
@pytest.mark.parametrize("rows", [64, 70])
def test_a_loss_scale_that_grows_is_the_one_of_the_step(growth, rows):
    """Before it is built, the optimizer scales by another number than after.

    64 rows make whole batches, of 70 the last is smaller.
    """

    def build():
        keras.backend.clear_session()  # which numbers the names again
        inner = keras.optimizers.Adam(0.01)
        model = dense()
        optimizer = keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=growth)
        model.compile(optimizer, crossentropy(), metrics=["accuracy"])
        return model

    def run(trained):
        trained.fit(*arrays(rows), batch_size=16, epochs=2, shuffle=False, verbose=0)
        optimizer = getattr(trained, "model", trained).optimizer
        return float(optimizer.dynamic_scale), [variable.path for variable in optimizer.variables]

    assert_as_keras(run, ValidationPolicy(), build=build)


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

    def run(trained):
        trained.fit(x, y, epochs=3, batch_size=8, verbose=0, validation_data=(x, y))

    trainer = assert_as_keras(run, ValidationPolicy(overlap="always"), build=build)
    assert not any("in step" in message for message in trainer.messages)
