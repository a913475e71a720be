"""Code that people really write equals Keras at every lag: state outside the model, odd logs, eager steps."""

import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.differential import assert_same_run, run_keras, run_ours
from tests.networks import arrays, assert_alike, assert_same_history, linear
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
    "python_in_the_step": "counting",
    "validation_changes_the_model": "calls",
}
"""The builders whose models have to be validated in step, and what the message names."""


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

    assert_as_keras(run, ValidationPolicy(max_lag=lag, overlap="always"), build=linear)


def test_preprocess_may_read_a_variable_that_a_callback_sets():
    weight, histories = tf.Variable(1.0), []
    for lag in (0, 2):
        policy = ValidationPolicy(max_lag=lag, overlap="always", workers=2)
        trainer = Trainer(linear(), validation=policy, preprocess=lambda x, y: (x * weight, y))
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

    history = Trainer(linear(kind=Odd)).fit(X, Y, epochs=2, validation_data=VALIDATION, verbose=2).history
    assert np.shape(history["matrix"]) == (2, 2, 3)
    assert "[1.0000 1.0000 1.0000 1.0000 ... 6 values]" in capsys.readouterr().out


def test_a_test_function_of_the_users_own_is_called():
    class Own(keras.Sequential):
        def make_test_function(self, force=False):
            self.test_function = lambda iterator: {"constant": 3.0}

    trainer = Trainer(linear(kind=Own))
    history = trainer.fit(X, Y, verbose=0, validation_data=VALIDATION)
    assert history.history["val_constant"] == [3.0]
    assert "makes its test function itself" in reasons(trainer)[0]


def test_logs_may_hold_nothing_and_lists():
    class Odd(keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "none": None, "list": [1.0, 2.0]}

        def test_step(self, data):
            return {**super().test_step(data), "none": None}

    def run(trained):
        return dict(trained.fit(X, Y, epochs=2, verbose=0, validation_data=VALIDATION).history)

    expected, actual, _ = in_turn(run, lambda: linear(kind=Odd), ValidationPolicy())
    assert_alike(actual, expected)
    assert actual["none"] == [None, None]
