"""`routed` and `install`: who calls `keras.Model.fit` trains with `Trainer`, with Keras's numbers."""

import contextlib
import functools
import inspect
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy, install, routed, uninstall
from overlap_train._keras import models as keras_models
from overlap_train._keras import routes
from tests import networks
from tests.networks import arrays, assert_same_history, assert_same_weights
from tests.pools import sequential

X, Y = arrays(64)
VALIDATION = arrays(30, 1)
ARGUMENTS = dict(batch_size=16, epochs=2, verbose=0, validation_data=VALIDATION)


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = {
        name: (getattr(keras.Model, name), keras_models.method_cell(name).cell_contents)
        for name in ("fit", "evaluate")
    }
    yield
    for name, (method, inner) in before.items():
        assert getattr(keras.Model, name) is method
        assert keras_models.method_cell(name).cell_contents is inner
        assert name not in vars(keras.Model)
    assert not routes._handlers


@pytest.fixture
def fits(monkeypatch):
    """Counts the trainings and evaluations that a `Trainer` makes, by their models."""
    made = []
    for name in ("fit", "evaluate"):
        original = getattr(Trainer, name)

        def count(self, *args, _original=original, _name=name, **kwargs):
            made.append((_name, self.model))
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(Trainer, name, functools.wraps(original)(count))
    return made


def test_a_routed_fit_is_that_of_keras(fits):
    expected = sequential()
    expected.fit(X, Y, **ARGUMENTS)
    assert not fits
    model = sequential()
    with routed(validation=ValidationPolicy(max_lag=2), execution=ExecutionPlan(jit=False)) as routing:
        history = model.fit(X, Y, **ARGUMENTS)
        value = model.evaluate(X, Y, verbose=0)
    assert fits == [("fit", model), ("evaluate", model)]
    assert routing.trainer.model is model
    assert routing.trainer.validation.max_lag == 2
    assert routing.trainer.ended == "completed", "the trainer of the fit, though it was evaluated behind it"
    assert history is model.history
    assert_same_history(history.history, expected.history.history)
    assert_same_weights(model, expected)
    np.testing.assert_allclose(value, expected.evaluate(X, Y, verbose=0), rtol=1e-5)
    model.fit(X, Y, verbose=0)
    assert len(fits) == 2


def test_the_signature_stays_that_of_keras():
    stock = {name: inspect.signature(getattr(keras.Model, name)) for name in ("fit", "evaluate")}
    with routed():
        for name, signature in stock.items():
            assert inspect.signature(getattr(keras.Model, name)) == signature
            assert getattr(keras.Model, name).__name__ == name


def test_the_innermost_block_counts_and_the_outer_one_again_after_it():
    outer, inner = ValidationPolicy(max_lag=0), ValidationPolicy(max_lag=2)
    with routed(validation=outer) as first:
        with routed(validation=inner) as second:
            sequential().fit(X, Y, **ARGUMENTS)
        assert first.trainer is None
        assert second.trainer.validation is inner
        sequential().fit(X, Y, **ARGUMENTS)
        assert first.trainer.validation is outer


def elsewhere(call):
    """Calls on another thread."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(call).result()


def test_a_block_is_for_its_thread_unless_for_all(fits):
    with routed():
        elsewhere(lambda: sequential().fit(X, Y, **ARGUMENTS))
    assert not fits
    with routed(all_threads=True):
        elsewhere(lambda: sequential().evaluate(X, Y, verbose=0))
    assert [name for name, _ in fits] == ["evaluate"]


def test_threads_route_side_by_side():
    policies = [ValidationPolicy(max_lag=lag) for lag in (0, 1, 2)]
    inside, found = threading.Barrier(len(policies)), {}

    def run(policy):
        with routed(validation=policy) as routing:
            inside.wait(60)
            sequential().evaluate(X, Y, verbose=0)
            inside.wait(60)
        found[policy.max_lag] = routing.trainer.validation

    with ThreadPoolExecutor(len(policies)) as threads:
        list(threads.map(run, policies))
    assert found == {policy.max_lag: policy for policy in policies}


def test_install_is_for_all_threads_until_uninstall(fits):
    install(validation=ValidationPolicy(max_lag=0))
    latest = install(validation=ValidationPolicy(max_lag=2))
    try:
        elsewhere(lambda: sequential().fit(X, Y, **ARGUMENTS))
        assert latest.trainer.validation.max_lag == 2
        with routed(validation=ValidationPolicy(max_lag=3)) as routing:
            sequential().evaluate(X, Y, verbose=0)
        assert routing.trainer.validation.max_lag == 3
    finally:
        uninstall()
        uninstall()
    before = len(fits)
    sequential().fit(X, Y, verbose=0)
    assert len(fits) == before


def test_fits_in_the_callback_of_a_fit_are_routed_too(fits):
    other = sequential()

    class Nested(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            other.fit(X, Y, verbose=0)
            logs["again"] = self.model.evaluate(*VALIDATION, verbose=0)[0]

    model = sequential()
    with routed():
        history = model.fit(X, Y, callbacks=[Nested()], **ARGUMENTS).history
    assert [name for name, made in fits if made is other] == ["fit", "fit"]
    np.testing.assert_allclose(history["again"], history["val_loss"], rtol=1e-5)


def test_the_wrappers_of_keras_are_routed(fits):
    def build(X, y):
        model = networks.sequential()
        model.compile("adam", "categorical_crossentropy")  # the wrapper makes one-hot labels
        return model

    with routed():
        classifier = keras.wrappers.SKLearnClassifier(build, fit_kwargs=dict(epochs=1, verbose=0))
        classifier.fit(X, Y)
    assert [name for name, _ in fits] == ["fit"]


@pytest.fixture
def autolog(monkeypatch):
    """A logger that has kept Keras's methods and put one of its own in the place of `fit`, as mlflow does."""
    calls, original = [], keras.Model.fit

    @functools.wraps(original)
    def patched(self, *args, **kwargs):
        class Log(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                calls.append((epoch, sorted(logs)))

        kwargs["callbacks"] = [*(kwargs.get("callbacks") or []), Log()]
        calls.append("begin")
        result = original(self, *args, **kwargs)
        calls.append("end")
        return result

    keras.Model.fit = patched
    yield calls
    del keras.Model.fit


LOGGED = ["accuracy", "loss", "val_accuracy", "val_loss"]


def test_autologging_goes_on_under_a_block(autolog, fits):
    with routed():
        sequential().fit(X, Y, **ARGUMENTS)
    assert autolog == ["begin", (0, LOGGED), (1, LOGGED), "end"]
    assert [name for name, _ in fits] == ["fit"]


def test_an_explicit_trainer_calls_active_autologging_and_says_so(autolog):
    trainer = Trainer(sequential())
    history = trainer.fit(X, Y, **ARGUMENTS)
    assert autolog == ["begin", (0, LOGGED), (1, LOGGED), "end"]
    assert len(history.history["val_loss"]) == 2
    assert any("called around this training" in message for message in trainer.messages)
    assert trainer.ended == "completed"


class OwnTrainFunction(keras.Sequential):
    def make_train_function(self, force=False):
        return super().make_train_function(force)


def test_what_a_trainer_refuses_is_left_to_keras_with_a_warning():
    model = networks.linear(kind=OwnTrainFunction)
    with routed() as routing, pytest.warns(RuntimeWarning, match="make_train_function"):
        model.fit(X, Y, epochs=1, verbose=0)
    assert routing.trainer is None
    assert model.history.epoch == [0]


def test_resume_is_for_one_fit(tmp_path):
    with routed(resume=tmp_path / "a"):
        sequential().fit(X, Y, **(ARGUMENTS | dict(epochs=1)))
    with routed(resume=tmp_path / "a"):
        model = sequential()
        model.fit(X, Y, **ARGUMENTS)
        with pytest.raises(ValueError, match="one call of fit"):
            model.fit(X, Y, **ARGUMENTS)
    expected = sequential()
    expected.fit(X, Y, **ARGUMENTS)
    assert_same_history(model.history.history, expected.history.history)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("validation", 1), ("execution", "fast"), ("resume", 3), ("all_threads", "yes"), ("resume", "")],
)
def test_bad_arguments_are_refused_by_name(argument, value):
    with pytest.raises((TypeError, ValueError), match=argument), routed(**{argument: value}):
        pass


def compared(calls, build=sequential, warned=True):
    """Does with a model of Keras's and with a routed one what `calls` says; returns the routed one.

    Args:
        calls: called with a model; what it returns or raises has to be the same.
        build: makes a model.
        warned: whether routing has to say that it has left the call to Keras.
    """
    expected, outcome = build(), []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        for model in (expected, build()):
            routing = contextlib.ExitStack()
            if outcome:
                routing.enter_context(routed())
            if outcome and warned:
                routing.enter_context(pytest.warns(RuntimeWarning, match="is not routed"))
            with routing:
                try:
                    outcome.append(calls(model))
                except Exception as error:
                    outcome.append((type(error), str(error)))
    assert outcome[1] == pytest.approx(outcome[0]) if warned else outcome[1] == outcome[0]
    assert_same_weights(model, expected)
    return model


REFUSED = [
    {"shuffle": None},
    {"validation_steps": 0},
    {"verbose": None},
    {"batch_size": 0},
    {"validation_batch_size": 0},
    {"steps_per_epoch": 0},
    {"epochs": True},
    {"initial_epoch": -1},
    {"validation_freq": True},
    {"validation_freq": 0},
    {"validation_freq": (1, 2)},  # which Keras takes
    {"validation_data": (X[:0], Y[:0])},
]


@pytest.mark.parametrize("more", REFUSED, ids=lambda more: str(more)[:24])
@pytest.mark.by_default("{'validation_freq': 0}")
def test_arguments_that_a_trainer_refuses_are_left_to_keras(more):
    arguments = ARGUMENTS | more
    with pytest.raises((TypeError, ValueError)):
        Trainer(sequential()).fit(X, Y, **arguments)
    compared(lambda model: str(model.fit(X, Y, **arguments).epoch))


def test_data_that_a_trainer_refuses_is_left_to_keras():
    compared(lambda model: str(model.fit(X[:0], Y[:0], verbose=0).history))
    compared(lambda model: model.evaluate(X, Y, batch_size=0, verbose=0))


def test_what_neither_knows_is_the_error_of_keras():
    def without(model):
        model.compiled = False
        try:
            return model.fit(X, Y, verbose=0)
        finally:
            model.compiled = True

    compared(without, build=networks.sequential)
    compared(lambda model: model.fit("text", verbose=0))
    compared(lambda model: model.fit(X, Y, validation_data=(X, Y, Y, Y), verbose=0))
    compared(lambda model: model.fit(X, Y, unknown=1), warned=False)
    compared(lambda model: model.fit(X, Y, resume="directory"), warned=False)
    compared(lambda model: model.evaluate(X, Y, unknown=1), warned=False)


def test_what_fails_after_a_fit_has_begun_is_no_refusal():
    class Nested(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            Trainer(self.model).fit(X, Y, epochs=-1)

    with routed() as routing, pytest.raises(ValueError, match="epochs must be at least 0; got -1"):
        sequential().fit(X, Y, callbacks=[Nested()], **ARGUMENTS)
    assert routing.trainer.ended == "failed"


def test_a_refused_call_leaves_the_directory_to_the_next_one(tmp_path):
    model = sequential()
    with routed(resume=tmp_path) as routing:
        with pytest.raises(ValueError, match="shuffle must be"):
            model.fit(X, Y, shuffle=None, **ARGUMENTS)
        assert model.optimizer.iterations == 0, "nor is it left to Keras, which writes no checkpoints"
        assert routing.trainer is None
        sequential().fit(X, Y, **ARGUMENTS)
        assert routing.trainer.ended == "completed"


BEYOND_KERAS = {
    "functions": dict(functions={"one": lambda model: 1.0}),
    "validations inside epochs": dict(every_steps=2),
}


@pytest.mark.parametrize("name", BEYOND_KERAS)
def test_what_keras_cannot_do_is_not_left_to_keras(name):
    model = networks.linear(kind=OwnTrainFunction)
    policy = ValidationPolicy(**BEYOND_KERAS[name])
    with routed(validation=policy) as routing:
        sequential().fit(X, Y, **ARGUMENTS)
        trainer = routing.trainer
        with pytest.raises(ValueError, match="OwnTrainFunction makes its train function itself"):
            model.fit(X, Y, epochs=1, verbose=0)
        assert routing.trainer is trainer, "at the end of the block, a fit has come through"
    assert model.optimizer.iterations == 0


class Alone(keras.Sequential):
    def fit(self, x, y, **arguments):
        return self.train_on_batch(x, y)


@pytest.mark.parametrize("name", ["resume", *BEYOND_KERAS])
def test_a_block_through_which_no_fit_came_says_what_had_no_effect(name, tmp_path):
    model = networks.linear(kind=Alone)
    given = {"resume": tmp_path}
    if name != "resume":
        given = {"validation": ValidationPolicy(**BEYOND_KERAS[name])}
    words = f"no call of keras.Model.fit came through .*, so that {name} had no effect"
    with pytest.raises(ValueError, match=words), routed(**given):  # noqa: PT012  at the block's end
        model.fit(X, Y)
        model.evaluate(X, Y, verbose=0)
    with routed(validation=ValidationPolicy(max_lag=2)):
        model.fit(X, Y)
    with pytest.raises(ZeroDivisionError), routed(**given):
        raise ZeroDivisionError
