"""Evaluation functions in a process of their own: the same values, its errors, its death and its end."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import types

import keras
import numpy as np
import pytest

from overlap_train import EvaluationFunction
from overlap_train._validation import function_process
from overlap_train.errors import ValidationTimeoutError, ValidationWorkerError
from tests import interpreters
from tests.networks import CLASSES, FEATURES, assert_same_weights, crossentropy, subclassed
from tests.validation.calling import (
    ROUNDING,
    WAIT_S,
    X,
    Y,
    expected_values,
    fit,
    mean_output,
    predicted_mean,
    simple,
)


def from_a_process(model):
    return {"pid": os.getpid(), "mean": predicted_mean(model)}


def says_no(model):
    raise ArithmeticError(f"no in {os.getpid()}")


def dies_once(path, model):
    if not os.path.exists(path):
        open(path, "w").close()
        os._exit(7)
    return 1.0


def sleeps(model):
    time.sleep(WAIT_S)


def changes(model):
    model.layers[-1].kernel.assign(0.0 * model.layers[-1].kernel)
    return 1.0


def forks(model):
    child = os.fork()
    if not child:
        return 0.0
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def make_subclassed():
    return type(subclassed())()


def in_process(function, **arguments):
    return {"f": EvaluationFunction(function, backend="process", **arguments)}


def test_a_process_gives_the_same_values():
    history = fit(simple(), in_process(from_a_process), max_lag=2).model.history.history
    np.testing.assert_allclose(history["val_f_mean"], expected_values(simple, predicted_mean), rtol=1e-5)
    assert len(set(history["val_f_pid"])) == 1
    assert history["val_f_pid"][0] != os.getpid()


@pytest.fixture
def forked(monkeypatch):
    """Forks the processes from one that has TensorFlow imported; the test above spawns its own."""
    forkserver = types.SimpleNamespace(get_context=lambda kind: interpreters.forkserver())
    monkeypatch.setattr(function_process, "multiprocessing", forkserver)


def test_a_process_makes_a_subclassed_model_by_clone(forked):
    functions = in_process(mean_output, clone=make_subclassed)
    history = fit(subclassed(), functions).model.history.history
    np.testing.assert_allclose(history["val_f"], expected_values(subclassed, mean_output), **ROUNDING)


class Scaled(keras.layers.Layer):
    """Computes with a number that its configuration does not hold."""

    def __init__(self, **options):
        super().__init__(**options)
        self.scale = 1.0

    def call(self, x):
        return x * self.scale


FACTOR = 1.0


class OfModule(keras.layers.Layer):
    """Computes with a number that the program holds."""

    def call(self, x):
        return x * FACTOR


def with_layer(layer):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES), layer])
    model.compile(keras.optimizers.Adam(0.01), crossentropy())
    return model


def scaled():
    model = with_layer(Scaled())
    model.layers[-1].scale, model.limits = 10.0, [1.0, 2.0]
    return model


def looked_at(model):
    return {
        "mean": mean_output(model),
        "limits": sum(model.limits),
        "iterations": int(model.optimizer.iterations),
        "rate": float(model.optimizer.learning_rate),
        "momenta": float(sum(np.abs(v).sum() for v in model.optimizer.variables[2:])),
        "named": sum(v.path.startswith("sequential") for v in model.variables),
        "half": keras.config.dtype_policy().name == "mixed_bfloat16",
    }


class Anneals(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.limits = [*self.model.limits, 10.0 * epoch]


def test_a_process_sees_the_attributes_the_optimizer_and_the_policy_of_the_epoch(forked):
    expected = []

    class Calls(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            expected.append(looked_at(self.model))

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        call = dict(batch_size=16, epochs=3, verbose=0)
        scaled().fit(X, Y, callbacks=[Calls(), Anneals()], **call)
        trainer = fit(scaled(), in_process(looked_at), callbacks=[Anneals()])
    finally:
        keras.config.set_dtype_policy("float32")
    history = trainer.model.history.history
    for name in expected[0]:
        np.testing.assert_allclose(
            history[f"val_f_{name}"], [each[name] for each in expected], err_msg=name, rtol=0.02
        )


def doubled(x):
    return 2.0 * x


def found_by_name(model):
    return sum(keras.saving.get_registered_object(name)(1.0) for name in ("of_the_scope", "registered"))


def test_a_process_finds_custom_objects_by_name(forked, monkeypatch):
    monkeypatch.setitem(keras.saving.get_custom_objects(), "registered", doubled)
    with keras.saving.custom_object_scope({"of_the_scope": doubled, "of_a_lambda": lambda x: x}):
        history = fit(simple(), in_process(found_by_name), epochs=1).model.history.history
    assert history["val_f"] == [4.0]


def test_a_model_that_a_process_makes_otherwise_is_refused(forked, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    with pytest.raises(ValidationWorkerError, match="no copy of the trained one: it computes something else"):
        fit(with_layer(OfModule()), in_process(mean_output))


def makes_another():
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES), keras.layers.ReLU()])


def test_a_clone_of_other_layers_is_refused(forked):
    with pytest.raises(ValidationWorkerError, match=r"it consists of Sequential, .*ReLU, not Sequential"):
        fit(simple(), in_process(mean_output, clone=makes_another))


def test_an_attribute_that_cannot_be_sent_is_named(forked):
    model = simple()
    model.lock = threading.Lock()
    trainer = fit(model, in_process(mean_output), epochs=1)
    (said,) = [text for text in trainer.messages if "cannot be pickled" in text]
    assert "Sequential.lock" in said


def test_what_is_raised_in_a_process_reaches_fit_with_its_traceback(forked):
    with pytest.raises(ValidationWorkerError, match="no in") as caught:
        fit(simple(), in_process(says_no))
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert "says_no" in str(caught.value.__cause__.__cause__)


def test_a_process_that_dies_is_an_error_and_is_started_again(tmp_path, forked):
    function = functools.partial(dies_once, str(tmp_path / "died"))
    with pytest.warns(RuntimeWarning, match="exit code 7"):
        trainer = fit(simple(), in_process(function), epochs=2, on_error="warn")
    assert trainer.model.history.history["val_f"] == [1.0]


def test_what_a_function_changes_in_a_process_is_said_and_reaches_nothing_else(forked):
    trainer = fit(simple(), in_process(changes))
    plain = fit(simple(), {})
    assert_same_weights(trainer.model, plain.model)
    (said,) = [message for message in trainer.messages if "changed its model" in message]
    assert "kernel" in said


def test_a_fork_of_a_process_that_comes_back_is_ended(forked):
    assert fit(simple(), in_process(forks), epochs=2).model.history.history["val_f"] == [1, 1]


def test_a_process_that_hangs_is_ended_with_the_fit(forked):
    before = time.monotonic()
    with pytest.raises(ValidationTimeoutError):
        fit(simple(), in_process(sleeps), timeout_s=0.2)
    assert time.monotonic() - before < WAIT_S / 2


def test_a_process_says_when_its_function_can_be_called(forked, monkeypatch):
    process, called = function_process.FunctionProcess, []
    answered = process._received

    def received(self):
        called.append((self.is_preparing(), answer := answered(self)))
        return answer

    monkeypatch.setattr(process, "_received", received)
    fit(simple(), in_process(mean_output), epochs=2)
    assert [preparing for preparing, _ in called] == [True, False, False]
    assert called[0][1] == "ready"


def test_a_process_starts_although_the_working_directory_is_gone(forked, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    trainer = fit(simple(), in_process(mean_output), epochs=1)
    assert len(trainer.model.history.history["val_f"]) == 1
    with pytest.raises(FileNotFoundError):
        os.getcwd()  # this process is left where it was


def test_a_function_that_cannot_be_sent_is_refused():
    with pytest.raises(TypeError, match="importable by name"):
        fit(simple(), in_process(lambda model: 0.0))
