"""Validation on the model itself: what Keras leaves in it, and what callbacks hear between the batches."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras.training import FitEvaluation
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._validation.live import KerasEvaluation, LiveRunner
from tests.networks import arrays, crossentropy
from tests.validation.counting import counting

X, Y = arrays(70)


def evaluation(model, *, rows=70, batch_size=16, steps=None, test_step=None):
    data = (X[:rows], Y[:rows], None)
    return KerasEvaluation(model, FitEvaluation(model, lambda: data, batch_size, steps), test_step)


def live_runner_of(model, spans=None):
    state = ModelState(model, [])
    return state, LiveRunner(evaluation(model), "why", state, (spans if spans is not None else []).append)


def test_what_validation_changes_is_left_in_the_model_as_keras_leaves_it():
    expected, actual = counting(), counting()
    state, runner = live_runner_of(actual)
    for _ in range(2):
        outcome = runner.run(keras.callbacks.CallbackList([], model=actual), None)
        logs = expected.evaluate(X, Y, batch_size=16, verbose=0, return_dict=True)
        assert outcome.result.metrics == pytest.approx(logs, rel=1e-5)
        for one, other in zip(state.read_metrics(), expected.metrics_variables, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_array_equal(actual.layers[0].calls, expected.layers[0].calls)


class Told(keras.callbacks.Callback):
    """Writes down what it hears of a validation, and may end it."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.heard, self.stop_at = [], stop_at

    def on_test_begin(self, logs=None):
        self.heard.append(["begin"])

    def on_test_batch_begin(self, batch, logs=None):
        self.heard.append(["batch", batch, float(self.model.layers[0].calls)])

    def on_test_batch_end(self, batch, logs=None):
        self.heard.append([batch, logs["loss"], float(self.model.layers[0].calls)])
        self.model.stop_evaluating = batch == self.stop_at

    def on_test_end(self, logs=None):
        self.heard.append([*logs, *logs.values()])


@pytest.mark.parametrize("stop_at", [None, 2])
def test_callbacks_hear_of_a_live_validation_what_keras_tells_them_between_its_batches(stop_at):
    expected, actual = counting(), counting()
    theirs, ours = Told(stop_at), Told(stop_at)
    expected.evaluate(X, Y, batch_size=16, verbose=0, callbacks=[theirs])
    _, runner = live_runner_of(actual)
    runner.run(keras.callbacks.CallbackList([ours], model=actual), None)
    assert len(ours.heard) == (8 if stop_at else 12)
    for one, other in zip(ours.heard, theirs.heard, strict=True):
        assert one == [part if isinstance(part, str) else pytest.approx(part, rel=1e-5) for part in other]


def test_a_live_validation_inside_an_epoch_leaves_the_metrics_of_the_training_and_tells_nobody():
    model, spans = counting(), []
    model.fit(X, Y, verbose=0)
    state, runner = live_runner_of(model, spans)
    before = [value.numpy() for value in state.read_metrics()]
    calls = float(model.layers[0].calls)
    told = Told()
    keras.callbacks.CallbackList([told], model=model)
    assert set(runner.run_alone().metrics) == {"loss"}
    for value, now in zip(before, state.read_metrics(), strict=True):
        np.testing.assert_array_equal(value, now)
    assert float(model.layers[0].calls) == calls + 5
    assert told.heard == []


def test_a_live_validation_has_the_span_of_its_epoch():
    model, spans = counting(), []
    state, runner = live_runner_of(model, spans)
    snapshot = Snapshot(epoch=4, step=60, values=state.read())
    outcome = runner.run(keras.callbacks.CallbackList([], model=model), snapshot)
    assert spans == [outcome.span]
    assert (outcome.span.name, outcome.span.epoch, outcome.span.step) == ("validate", 4, 60)
    assert runner.start(snapshot) == [], "workers have no part in it"


def callbacks_of(model, *callbacks):
    return keras.callbacks.CallbackList(list(callbacks), model=model)


class Raises(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        raise KeyError("of a callback")


@pytest.mark.parametrize("of_hook", [True, False])
def test_what_a_callback_raises_is_told_from_what_the_step_raises(of_hook):
    model = counting()
    _, runner = live_runner_of(model)

    def fails(batch):
        raise KeyError("of the step")

    if not of_hook:
        runner._validate = evaluation(model, test_step=fails)
    with pytest.raises(KeyError) as raised:
        runner.run(callbacks_of(model, *[Raises()] * of_hook), None)
    assert (runner.raised_by_hook is raised.value) is of_hook


def bare():
    """Returns a model without metrics, for steps that have logs of their own."""
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    model.compile("sgd", crossentropy())
    return model


def test_a_step_of_the_trainers_takes_the_place_of_the_models_and_may_call_it():
    model, seen = bare(), []

    def test_step(batch):
        seen.append(1)  # when it is traced
        return {"own": model.test_step(batch)["loss"] * 0 + 3.0}

    validate = evaluation(model, test_step=test_step)
    before = model.test_function
    for _ in range(2):
        assert validate(callbacks_of(model)) == {"own": 3.0}
        assert model.test_function is before
        assert "test_step" not in vars(model)
    assert 1 <= len(seen) <= 2, "it is traced for full batches, and for the last one"


def test_a_step_that_returns_no_logs_is_refused():
    model = bare()
    with pytest.raises(TypeError, match="validation_step returned"):
        evaluation(model, test_step=lambda batch: 3.0)(callbacks_of(model))
    assert "test_step" not in vars(model)


class OwnEvaluate(keras.Sequential):
    """Notes how it is called."""

    def evaluate(self, x=None, y=None, **arguments):
        self.asked = arguments
        return {"own": float(len(x))}


def test_a_models_own_evaluate_is_called_as_fit_calls_it():
    model = OwnEvaluate([keras.Input((12,)), keras.layers.Dense(4)])
    model.compile("sgd", crossentropy())
    callbacks = callbacks_of(model)
    assert evaluation(model, steps=2)(callbacks) == {"own": 70.0}
    asked = model.asked
    assert (asked["batch_size"], asked["steps"], asked["callbacks"]) == (16, 2, callbacks)
    assert asked["return_dict"] is True


class Ends(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        self.model.stop_evaluating = batch == 1


@pytest.mark.by_default("endless")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("data", "steps", "callbacks", "expected"),
    [
        pytest.param(lambda rows: rows, None, [], (2, 5), id="counted"),
        pytest.param(lambda rows: rows.filter(lambda *_: True), None, [], (1, 5), id="uncounted"),
        pytest.param(lambda rows: rows, 3, [], (1, 3), id="some steps"),
        pytest.param(lambda rows: rows, 9, [], (2, 5), id="too many steps"),
        pytest.param(lambda rows: rows.repeat(), 3, [], (1, 3), id="endless"),
        pytest.param(lambda rows: rows, None, [Ends()], (1, 2), id="ended by a hook"),
    ],
)
def test_what_a_validation_draws_is_counted(data, steps, callbacks, expected):
    model, passes = bare(), []
    rows = data(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16))
    validate = KerasEvaluation(
        model, FitEvaluation(model, lambda: (rows, None, None), None, steps), None, passes.append
    )
    for _ in range(2):
        validate(callbacks_of(model, *callbacks))
    assert [(made.iterators, made.batches) for made in passes] == [expected] * 2


def test_a_step_that_was_set_on_the_model_itself_is_there_again_behind_it():
    model = bare()
    model.test_step = own = lambda batch: {"own": 1.0}
    validate = evaluation(model, test_step=lambda batch: {"around": model.test_step(batch)["own"] + 1.0})
    assert validate(callbacks_of(model)) == {"around": 2.0}
    assert model.test_step is own
