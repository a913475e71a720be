"""A chief and an evaluator in two threads of one process: options of the validation, and what is refused.

`tests/parallel/test_evaluator.py` has them in processes of their own.
"""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from overlap_train.parallel.credentials import Credentials
from overlap_train.parallel.evaluator import EvaluatorPlace

from overlap_train import Trainer, ValidationPolicy, ValidationSet
from overlap_train._fit import evaluator_host as serving
from overlap_train._snapshot import ModelState
from overlap_train._validation.suite import ValidationSuite
from overlap_train.errors import (
    HostLostError,
    HostMismatchError,
    ValidationTimeoutError,
    ValidationWorkerError,
)
from overlap_train.parallel.hosts import EvaluatorTask
from tests import pools
from tests.networks import VALIDATION_ROWS, arrays, assert_same_history, sequential
from tests.parallel.test_hosts import free_ports
from tests.validation.test_remote import Link

pytestmark = pytest.mark.timeout(200)

X, Y = arrays()
CLEAN, NOISY = arrays(VALIDATION_ROWS, 1), arrays(VALIDATION_ROWS, 2)


@functools.cache
def strategy_of_the_chief():
    return tf.distribute.OneDeviceStrategy("CPU:0")


@pools.pooled
def sequential_of_the_chief():
    return sequential()


@pytest.fixture
def together(monkeypatch):
    """Returns a function that fits as a chief while a thread is its evaluator; returns both of them."""
    place = EvaluatorPlace(f"localhost:{free_ports(1)[0]}", "a cluster", 60.0)
    listening = threading.Event()
    accept = serving.accept

    def tell_and_accept(*arguments, **options):
        listening.set()  # from here on the evaluator traces nothing, and the chief may
        return accept(*arguments, **options)

    monkeypatch.setattr(serving, "accept", tell_and_accept)

    def trainer_of(strategy, policy, make):
        with strategy.scope():
            model = make()
        return Trainer(model, validation=policy, strategy=strategy)

    def serve(started, callbacks, **arguments):
        """Fits as one evaluator after another, each of which is lost but for the last."""
        for evaluator in started[:-1]:
            with pytest.raises(HostLostError):
                evaluator.fit(X, Y, callbacks=callbacks(), **arguments)
        started[-1].fit(X, Y, callbacks=callbacks(), **arguments)

    def fit(
        policy=None, make=sequential, theirs=None, callbacks=list, *, place=place, evaluators=1, **arguments
    ):
        listening.clear()
        started = [trainer_of(EvaluatorTask(place), policy, make) for _ in range(evaluators)]
        evaluator = started[-1]
        chiefs = sequential_of_the_chief if make is sequential else make
        chief = trainer_of(strategy_of_the_chief(), policy, chiefs)
        chief.replicas.evaluator = place
        common = {"batch_size": 32, "epochs": 4, "verbose": 0, "validation_data": CLEAN} | arguments
        with ThreadPoolExecutor(1) as thread:
            theirs = thread.submit(serve, started, callbacks, **(common | (theirs or {})))
            assert listening.wait(60)
            try:
                chief.fit(X, Y, callbacks=callbacks(), **common)
            finally:
                error = theirs.exception(timeout=60)
        evaluator.error = error
        return chief, evaluator

    return fit


def alone(policy=None, callbacks=list, **arguments):
    common = {"batch_size": 32, "epochs": 4, "verbose": 0, "validation_data": CLEAN} | arguments
    trainer = Trainer(pools.sequential(), validation=policy)
    trainer.fit(X, Y, callbacks=callbacks(), **common)
    return trainer


def history(trainer):
    return trainer.model.history.history


def test_sets_steps_and_the_sanity_check_are_those_of_a_validation_here(together):
    policy = ValidationPolicy(every_steps=5, sanity_check=True, max_lag=1)
    sets = {"clean": CLEAN, "noisy": ValidationSet(data=NOISY, freq=2)}
    one = alone(policy, validation_data=sets)
    chief, evaluator = together(policy, validation_data=sets)
    assert evaluator.error is None
    assert_same_history(history(chief), history(one), 1e-5)
    assert_same_history(history(evaluator), history(one), 1e-5)
    assert chief.step_validations
    for ours, theirs in zip(chief.step_validations, one.step_validations, strict=True):
        assert (ours.epoch, ours.step) == (theirs.epoch, theirs.step)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-5)
    assert chief.ended == evaluator.ended == "completed"
    for ours, theirs in zip(evaluator.model.weights, chief.model.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_next_fit_finds_the_evaluator_again(together):
    first, second = (together(epochs=1)[0] for _ in range(2))
    assert history(first) == history(second)


def test_callbacks_that_listen_to_test_batches_hear_them(together):
    heard = []

    class Listening(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            heard.append((batch, logs["loss"]))

    def callbacks():
        return [Listening(), keras.callbacks.SwapEMAWeights(swap_on_epoch=False)]

    def ema():
        return sequential(keras.optimizers.Adam(use_ema=True))

    one = Trainer(ema())
    one.fit(X, Y, batch_size=32, epochs=2, verbose=0, validation_data=CLEAN, callbacks=callbacks())
    expected = heard.copy()
    heard.clear()
    chief, _ = together(make=ema, epochs=2, callbacks=callbacks)
    assert len(heard) == len(expected) > 0
    np.testing.assert_allclose(heard, expected, rtol=1e-5)
    assert_same_history(history(chief), history(one), 1e-5)


def lose_after(count, monkeypatch):
    """Makes the evaluator's host go after so many answers."""
    answer, answers = serving._answer, []

    def dying(*arguments):
        answers.append(None)
        if len(answers) > count:
            raise HostLostError("this host is switched off")
        return answer(*arguments)

    monkeypatch.setattr(serving, "_answer", dying)


def test_a_lost_evaluator_ends_the_training(together, monkeypatch):
    lose_after(2, monkeypatch)
    with pytest.raises(ValidationWorkerError, match=r"validating epoch 3 failed .* the evaluator has gone"):
        together(ValidationPolicy())


def test_a_lost_evaluator_can_be_done_without(together, monkeypatch):
    lose_after(2, monkeypatch)
    with pytest.warns(RuntimeWarning, match="left out: validating epoch [34] failed"):
        chief, evaluator = together(ValidationPolicy(on_error="warn"))
    assert len(history(chief)["loss"]) == 4
    assert len(history(chief)["val_loss"]) == 2
    assert isinstance(evaluator.error, HostLostError)


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_lost_evaluator_that_is_started_again_is_taken_back(on_error, together, monkeypatch):
    place = EvaluatorPlace(f"localhost:{free_ports(1)[0]}", "a cluster", 60.0, return_s=60.0)
    answer, answers = serving._answer, []

    def dying_once(*arguments):
        answers.append(None)
        if len(answers) == 2:
            raise HostLostError("this host is switched off")
        return answer(*arguments)

    monkeypatch.setattr(serving, "_answer", dying_once)
    with pytest.warns(RuntimeWarning, match="the evaluator has gone.*waiting up to 60 s for an evaluator"):
        chief, evaluator = together(ValidationPolicy(on_error=on_error), place=place, evaluators=2)
    assert evaluator.error is None
    assert_same_history(history(chief), history(alone()), 1e-5)
    assert_same_history(history(evaluator), history(chief), 1e-5)
    for ours, theirs in zip(evaluator.model.weights, chief.model.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_lost_evaluator_that_does_not_come_back_is_waited_for_once(together, monkeypatch):
    place = EvaluatorPlace(f"localhost:{free_ports(1)[0]}", "a cluster", 60.0, return_s=0.2)
    lose_after(1, monkeypatch)
    with pytest.warns(RuntimeWarning) as warnings:
        chief, _ = together(ValidationPolicy(on_error="warn"), place=place)
    said = [str(warning.message) for warning in warnings]
    assert sum("waiting up to 0.2 s" in message for message in said) == 1
    assert sum("left out: validating epoch" in message for message in said) == 3
    assert len(history(chief)["val_loss"]) == 1


def test_a_fit_that_ends_does_not_wait_for_an_evaluator(together, monkeypatch):
    """The time-out of a validation ends the training while its evaluator is waited for."""
    place = EvaluatorPlace(f"localhost:{free_ports(1)[0]}", "a cluster", 60.0, return_s=3600.0)
    lose_after(1, monkeypatch)
    with (
        pytest.warns(RuntimeWarning, match="waiting up to 3600 s"),
        pytest.raises(ValidationTimeoutError, match="timeout_s=1"),
    ):
        together(ValidationPolicy(timeout_s=1.0), place=place)


class Peer:
    """A chief that says what it is told, over a link of its own."""

    def __init__(self, *requests):
        self._requests = list(requests)
        self.answers = []
        self.closed = False

    def send(self, message, parts=()):
        self.answers.append(message)

    def receive(self, sizes):
        request = self._requests.pop(0)
        return request, [memoryview(bytes(size)) for size in sizes] if request["kind"] == "end" else []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True


@pytest.mark.parametrize("strange", [{}, {"kind": "end"}, {"kind": "validate", "set": ""}, {"kind": ["x"]}])
def test_a_peer_that_says_what_no_chief_says_is_left_for_another(strange, monkeypatch):
    model = sequential()
    model.history = keras.callbacks.History()
    end = {"kind": "end", "epoch": [0], "history": {"loss": [1.0]}, "ended": "completed"}
    peers = [Peer({"kind": None} | strange), Peer(end)]
    left = list(peers)
    monkeypatch.setattr(serving, "accept", lambda *_, **__: (left.pop(0), {}))
    place = EvaluatorPlace("localhost:1", "a cluster", 60.0)
    assert serving.serve(place, {}, ValidationSuite([]), ModelState(model), model) == "completed"
    assert [peer.closed for peer in peers] == [True, True]
    assert model.history.history == {"loss": [1.0]}


def test_a_validation_that_hangs_ends_the_training_in_its_time_out(together, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr("overlap_train._validation.remote._GRACE_S", 0.01)
    monkeypatch.setattr(serving, "_answer", lambda *_: over.wait(60) and {"kind": "result"})

    def release(*arguments):
        over.set()
        return abort(*arguments)

    abort = Link.abort
    monkeypatch.setattr(Link, "abort", release)
    with pytest.raises(ValidationTimeoutError, match=r"did not end within timeout_s=0\.2"):
        together(ValidationPolicy(timeout_s=0.2))


def test_what_fails_on_the_evaluator_is_told_on_the_chief(together, monkeypatch):
    def failing(self, name, values):
        raise ArithmeticError("the cause")

    monkeypatch.setattr("overlap_train._validation.suite.ValidationSuite.evaluate", failing)
    with pytest.raises(ValidationWorkerError, match="on the evaluator: ArithmeticError: the cause"):
        together()


@pytest.mark.parametrize(
    ("theirs", "part"),
    [
        ({"validation_data": NOISY}, "validation data"),
        ({"validation_data": {"clean": CLEAN}}, "choice of validation sets"),
        ({"validation_steps": 2}, "choice of validation sets"),
        ({"validation_data": tf.data.Dataset.from_tensor_slices(CLEAN).batch(32)}, "validation data"),
    ],
)
def test_what_differs_is_refused_on_both(theirs, part, together):
    key = Credentials(key=b"k" * 32)
    place = EvaluatorPlace(f"localhost:{free_ports(1)[0]}", "a cluster", 60.0, credentials=key)
    with pytest.raises(HostMismatchError, match=f"the evaluator has another {part} than the chief: "):
        together(theirs=theirs, place=place)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CLEAN, NOISY),
        (CLEAN, (CLEAN[0][:-1], CLEAN[1][:-1])),
        (CLEAN, (*CLEAN, np.ones(VALIDATION_ROWS))),
        (np.asarray([["a"], ["b"]], object), np.asarray([["a"], ["c"]], object)),
        (tf.constant(CLEAN[0]), tf.constant(NOISY[0])),
    ],
)
def test_other_data_has_another_description(one, other):
    assert serving._described(one) == serving._described(one)
    assert serving._described(one) != serving._described(other)


def test_an_array_is_described_as_the_tensor_of_it():
    assert serving._described(CLEAN) == serving._described(tuple(map(tf.constant, CLEAN)))


class Counting(keras.Model):
    """Counts its validation batches in a weight."""

    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(4)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x):
        return self.head(x)

    def test_step(self, data):
        self.seen.assign_add(1.0)
        return super().test_step(data)


def counting():
    keras.utils.set_random_seed(7)
    model = Counting()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_a_validation_that_changes_the_model_is_refused_on_both(together):
    with pytest.raises(
        HostMismatchError, match=r"validation changes variables that are no metric of the model .*seen"
    ):
        together(make=counting)
