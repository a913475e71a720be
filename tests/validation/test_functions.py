"""Evaluation functions beside the training: what they get, when they run, and what may go wrong in them."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._snapshot import ModelState
from overlap_train._validation.private_model import make_private_model
from overlap_train.errors import ValidationTimeoutError, ValidationWorkerError
from tests.networks import FEATURES, assert_same_weights
from tests.validation.calling import WAIT_S, X, Y, fit, kl, mean_output, simple

# What a function gets


def test_callbacks_may_monitor_a_value(tmp_path):
    values = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    stop = keras.callbacks.EarlyStopping("val_score", mode="min", patience=2, restore_best_weights=True)
    save = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}.keras", "val_score", mode="min", save_best_only=True
    )
    trainer = fit(simple(), {"score": lambda model: next(values)}, epochs=6, callbacks=[stop, save])
    assert trainer.ended == "stopped"
    assert trainer.model.history.history["val_score"] == [3.0, 1.0, 2.0, 2.0]
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["1", "2"]
    best = keras.saving.load_model(tmp_path / "2.keras")
    np.testing.assert_array_equal(best.get_weights()[0], trainer.model.get_weights()[0])


@pytest.mark.nightly
def test_a_copy_disturbs_no_random_state_and_no_name():
    def numbers():
        import random

        state = random.random(), np.random.random(), float(tf.random.uniform(()))
        return state, kl.Dense(1).name, int(keras.random.randint((), 0, 1000))

    keras.utils.set_random_seed(3)
    model = simple()
    model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
    expected = numbers()
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = simple()
    model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
    make_private_model(model, ModelState(model), tf.TensorSpec((None, FEATURES)))
    actual = numbers()
    assert actual[0] == expected[0]
    assert actual[2] == expected[2]


def test_a_function_alone_leaves_validation_split_to_fit():
    trainer = Trainer(simple(), validation=ValidationPolicy(functions={"one": lambda model: 1.0}))
    history = trainer.fit(X, Y, epochs=1, verbose=0, validation_split=0.25).history
    assert {"val_loss", "val_one"} <= set(history)


def test_functions_are_called_inside_epochs_too():
    steps = []

    class Listens(keras.callbacks.Callback):
        def on_step_validation(self, step, logs):
            steps.append((step, logs["val_mean"]))

    trainer = fit(simple(), {"mean": mean_output}, epochs=2, callbacks=[Listens()], every_steps=2)
    assert [step for step, _ in steps] == [2, 4, 6, 8]
    assert [r.metrics["val_mean"] for r in trainer.step_validations] == [value for _, value in steps]


# When it runs


@pytest.mark.usefixtures("steps_may_wait")
def test_training_goes_on_while_a_function_waits():
    """The function of epoch 1 waits for a step of epoch 2, so that it ends only if that is made meanwhile."""
    later, made, met = threading.Event(), [0], []

    class Counts(Trainer):
        def train_step(self, batch):
            def count():
                made[0] += 1
                if made[0] > 4:
                    later.set()
                return 0

            with tf.control_dependencies([tf.py_function(count, [], tf.int32)]):
                return super().train_step(tf.nest.map_structure(tf.identity, batch))

    def wait(model):
        met.append(later.wait(WAIT_S))
        return 0.0

    policy = ValidationPolicy(functions={"wait": wait}, overlap="always")
    Counts(simple(), validation=policy).fit(X, Y, batch_size=16, epochs=2, verbose=0)
    assert met == [True, True]


def test_two_functions_wait_together_each_on_a_thread_of_its_own():
    both, threads = threading.Barrier(2), set()

    def meet(model):
        threads.add(threading.current_thread().name)
        both.wait(WAIT_S)
        return 1.0

    trainer = fit(simple(), {"a": meet, "b": meet}, epochs=2)
    assert trainer.model.history.history["val_a"] == [1.0, 1.0]
    assert threads == {"validation-a-0", "validation-b-0"}


# What goes wrong in it


@pytest.mark.parametrize(
    "error", [ValueError("a bad day"), SystemExit(3), KeyboardInterrupt()], ids=lambda e: type(e).__name__
)
def test_what_a_function_raises_ends_the_fit(error):
    def fail(model):
        raise error

    with pytest.raises(ValidationWorkerError, match="'score'") as caught:
        fit(simple(), {"score": fail})
    assert caught.value.__cause__ is error
    assert caught.value.epoch == 0


@pytest.mark.parametrize(
    "value",
    [None, "0.5", [0.5], np.zeros(2), 1j, {"a": None}, {1: 2.0}, {"": 1.0}, {"a": {"b": [1]}}, int],
    ids=repr,
)
def test_nonsense_is_an_error_that_says_what_is_expected(value):
    with pytest.raises(ValidationWorkerError, match=r"evaluation function (returns|names)"):
        fit(simple(), {"score": lambda model: value}, epochs=1)


@pytest.mark.filterwarnings("ignore:.*did not end within")
def test_a_function_that_hangs_ends_in_a_timeout():
    go_on = threading.Event()
    try:
        with pytest.raises(ValidationTimeoutError, match=r"epoch 1 .*1 parts of 'hang' were not done"):
            fit(simple(), {"hang": lambda model: go_on.wait(WAIT_S)}, timeout_s=0.2)
    finally:
        go_on.set()


def test_what_a_function_changes_in_its_model_reaches_nothing_else():
    def change(model):
        model.layers[-1].kernel.assign(tf.zeros_like(model.layers[-1].kernel))
        model.fit(X, Y, verbose=0)
        return mean_output(model)

    trainer = fit(simple(), {"change": change})
    plain = simple()
    plain.fit(X, Y, batch_size=16, epochs=3, verbose=0)
    assert_same_weights(trainer.model, plain)
