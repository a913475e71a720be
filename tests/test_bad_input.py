"""Each bad input gives one clear error where it happens; nothing hangs and nothing is left behind.

The fixture in `conftest.py` fails any of these tests after which a thread of ours is still running.
"""

import itertools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._validation.runner import ValidationRunner
from overlap_train.errors import ValidationTimeoutError, ValidationWorkerError
from tests import networks
from tests.networks import arrays, crossentropy
from tests.pools import pooled
from tests.whole_fits.comparing import Rows, assert_as_keras, slices
from tests.whole_fits.test_overlap import Held

X, Y = arrays(64)
XV, YV = arrays(24, 1)


linear = pooled(networks.linear)


def fit(model, x=X, y=Y, *, workers=2, **arguments):
    given = {"epochs": 2, "batch_size": 16, "verbose": 0, "shuffle": False} | arguments
    if not isinstance(x, np.ndarray):
        del given["batch_size"]
        y = None
    return Trainer(model, validation=ValidationPolicy(workers=workers)).fit(x, y, **given)


def dataset(x=X, y=Y):
    return slices(x, y).batch(8)


def assert_still_usable(model):
    assert len(fit(model, validation_data=(XV, YV)).history["val_loss"]) == 2


# The model


def test_a_model_that_is_not_compiled_is_refused():
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    for call in (Trainer(model).fit, Trainer(model).evaluate):
        with pytest.raises(
            ValueError, match=r"'sequential.*' is not compiled; call model.compile\(optimizer"
        ):
            call(X, Y, verbose=0)


def test_a_model_without_an_optimizer_is_refused():
    model = networks.linear(optimizer=None)
    with pytest.raises(ValueError, match=r"no optimizer; pass one to model.compile\(optimizer="):
        fit(model)


def test_a_model_that_cannot_be_built_says_so_before_anything_starts():
    class Broken(keras.Model):
        def call(self, x):
            raise LookupError("no such layer")

    model = Broken()
    model.compile("sgd", crossentropy())
    with pytest.raises(LookupError, match="no such layer"):
        fit(model, validation_data=(XV, YV))


# What is given


SHAPE = r"incompatible with the layer: expected axis -1 .* value 12"
LENGTHS = r"(?s)same number of samples.*'x' sizes: \d+.*'y' sizes: \d+"
# Numbers and flags are tried in tests/support/test_fit_arguments.py.
REFUSED = [
    ({"x": X[:, :5]}, SHAPE),
    ({"validation_data": (XV[:, :5], YV)}, SHAPE),
    ({"y": Y[:-1]}, LENGTHS),
    ({"validation_data": (XV, YV[:-1])}, LENGTHS),
    ({"validation_data": dataset().repeat()}, r"never ends; pass validation_steps="),
    ({"validation_data": (XV[:0], YV[:0])}, "validation data is empty"),
    ({"validation_data": Rows(XV[:0], YV[:0])}, "validation data is empty"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_data_that_does_not_fit_is_refused(arguments, message):
    model = linear()
    with pytest.raises(ValueError, match=message):
        fit(model, **{"validation_data": (XV, YV)} | arguments)
    if "is empty" in message:
        assert_still_usable(model)


@pytest.mark.parametrize(("value", "guard"), [(np.nan, False), (np.nan, True), (np.inf, True)])
def test_a_loss_that_is_not_finite_ends_as_in_keras(value, guard, capsys):
    """With the guard inside epoch 0, whose validation is then still to be delivered."""
    x = X.copy()
    x[40, 0] = value  # all of them infinite would cancel to NaN

    def run(trained):
        given = {"batch_size": 16, "shuffle": False, "validation_data": (XV, YV), "verbose": 0}
        callbacks = [keras.callbacks.TerminateOnNaN()] if guard else []
        history = trained.fit(x, Y, epochs=3, callbacks=callbacks, **given)
        assert not np.isfinite(history.history["loss"][-1])
        assert history.epoch == ([0] if guard else [0, 1, 2])
        return capsys.readouterr().out

    trainer = assert_as_keras(run, ValidationPolicy(), build=linear)
    assert trainer.ended == ("stopped" if guard else "completed")


# Failures in the middle


def breaking(x, y):
    """A dataset whose third batch fails."""
    y = y.copy()
    y[20] = 1000

    def check(x, y):
        with tf.control_dependencies([tf.debugging.assert_less(y, tf.constant(100, y.dtype), "bad row")]):
            return tf.identity(x), y

    return dataset(x, y).map(check)


def failing_generator(*_):
    for i in range(6):
        yield arrays(8, i)
    raise OSError("the disk is gone")


INVALID = tf.errors.InvalidArgumentError, "bad row"
BREAKING = {
    "dataset": (breaking, *INVALID),
    "drawn anew": (lambda *arrays: breaking(*arrays).shuffle(1, seed=1), *INVALID),
    "generator": (failing_generator, tf.errors.UnknownError, "OSError: the disk is gone"),
}


@pytest.mark.parametrize(("make", "error", "said"), BREAKING.values(), ids=BREAKING)
def test_training_data_that_raises_in_the_middle_raises_from_fit(make, error, said):
    model = linear()
    with pytest.raises(error, match=said):
        fit(model, make(X, Y), validation_data=(XV, YV))
    assert_still_usable(model)


@pytest.mark.parametrize(("make", "kind", "said"), BREAKING.values(), ids=BREAKING)
def test_validation_data_that_raises_in_the_middle_names_epoch_and_part(make, kind, said):
    model = linear()
    where = rf"epoch 1 failed in part \d of 2: {kind.__name__}: "
    with pytest.raises(ValidationWorkerError, match=where) as info:
        fit(model, validation_data=make(XV, YV))
    assert info.value.epoch == 0
    assert info.value.shard in (0, 1)
    assert isinstance(info.value.__cause__, kind)
    assert said in str(info.value.__cause__)
    assert_still_usable(model)


def test_a_validation_that_takes_too_long_ends_with_a_timeout(monkeypatch):
    model, stop = linear(), threading.Event()

    def endless():
        for i in itertools.count():
            if i >= 3:
                stop.wait(60)
            if stop.is_set():
                return
            yield arrays(8, i)

    # The stuck worker is let go as soon as `fit` gives up, so that its pool can be closed without a wait.
    close = ValidationRunner.close
    monkeypatch.setattr(ValidationRunner, "close", lambda self: (stop.set(), close(self)))
    trainer = Trainer(model, validation=ValidationPolicy(workers=2, timeout_s=1.0))
    with pytest.raises(ValidationTimeoutError, match=r"epoch 1 did not end within timeout_s=1: 2 of 2 parts"):
        trainer.fit(X, Y, epochs=2, verbose=0, validation_data=endless())
    assert trainer.ended == "failed"
    monkeypatch.undo()
    assert_still_usable(model)


@pytest.mark.usefixtures("steps_may_wait")
def test_a_callback_that_raises_while_a_validation_is_pending_leaves_nothing_running(monkeypatch):
    """The validation of epoch 0 is held until that of epoch 1 has been handed to the workers."""
    model, started = linear(), []
    trainer = Held(model, 1_000_000, validation=ValidationPolicy(workers=2))
    start = ValidationRunner.start

    def start_and_release(self, snapshot):
        futures = start(self, snapshot)
        started.append(snapshot.epoch)
        if snapshot.epoch == 1:
            trainer.go_on.set()
        return futures

    class Raise(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            assert (epoch, started) == (0, [0, 1])
            raise RuntimeError("the callback gave up")

    monkeypatch.setattr(ValidationRunner, "start", start_and_release)
    with pytest.raises(RuntimeError, match="the callback gave up"):
        trainer.fit(X, Y, epochs=4, callbacks=[Raise()], verbose=0, validation_data=(XV, YV))
    assert not trainer.timed_out
    monkeypatch.undo()
    assert_still_usable(model)
