"""Validation on the model itself: what Keras leaves in it, and what callbacks hear between the batches."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.given_data import GivenData
from overlap_train._data.validation_data import make_batches
from overlap_train._keras.data import recognize
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._validation.live import (
    LiveRunner,
    OwnEvaluation,
    StepByStep,
    chosen_step,
    eager_step,
    is_of_hook,
    late_step,
    live_failure,
    traced_step,
)
from overlap_train._validation.validation_step import trace_validation
from tests.networks import arrays
from tests.validation.counting import counting

X, Y = arrays(70)


def live_runner_of(model, spans=None):
    batches = make_batches(GivenData(lambda: recognize(X, Y, batch_size=16)), steps=None, cache_bytes=1 << 30)
    step = trace_validation(model, model.test_step, batches.element_spec)
    assert step.live
    state = ModelState(model, step.variables)
    validate = StepByStep(model, traced_step(step), batches)
    return state, LiveRunner(validate, step.live, state, (spans if spans is not None else []).append)


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
        self.heard.append("begin")

    def on_test_batch_begin(self, batch, logs=None):
        self.heard.append(("batch", batch, float(self.model.layers[0].calls)))

    def on_test_batch_end(self, batch, logs=None):
        self.heard.append((batch, pytest.approx(logs["loss"], rel=1e-5), float(self.model.layers[0].calls)))
        self.model.stop_evaluating = batch == self.stop_at

    def on_test_end(self, logs=None):
        self.heard.append(pytest.approx(dict(logs), rel=1e-5))


@pytest.mark.parametrize("stop_at", [None, 2])
def test_callbacks_hear_of_a_live_validation_what_keras_tells_them_between_its_batches(stop_at):
    expected, actual = counting(), counting()
    theirs, ours = Told(stop_at), Told(stop_at)
    expected.evaluate(X, Y, batch_size=16, verbose=0, callbacks=[theirs])
    _, runner = live_runner_of(actual)
    runner.run(keras.callbacks.CallbackList([ours], model=actual), None)
    assert len(ours.heard) == (8 if stop_at else 12)
    for one, other in zip(ours.heard, theirs.heard, strict=True):
        assert _plain(one) == other


def _plain(heard):
    """Returns what was heard without the tolerance, of which one side is enough."""
    if isinstance(heard, tuple):
        return tuple(_plain(part) for part in heard)
    return heard.expected if hasattr(heard, "expected") else heard


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
        runner._validate = StepByStep(model, fails, runner._validate.batches)
    with pytest.raises(KeyError) as raised:
        runner.run(callbacks_of(model, *[Raises()] * of_hook), None)
    assert is_of_hook(raised.value) is of_hook


@pytest.mark.parametrize(("name", "where"), [("", ""), ("clean", "on set 'clean' ")])
def test_a_failure_names_epoch_and_set(name, where):
    failed = live_failure(name, 3, KeyError("x"))
    assert str(failed) == f"validating epoch 4 {where}failed: KeyError: 'x'"
    assert (failed.epoch, failed.shard) == (3, 0)


def test_who_wants_parts_of_it_is_told_to_run_it():
    _, runner = live_runner_of(counting())
    with pytest.raises(NotImplementedError, match="call `run`"):
        runner.evaluate(None)
    with pytest.raises(NotImplementedError, match="call `run`"):
        runner.merge([], None)
    assert runner.evaluate_one_batch(None) is None
    assert (runner.live, runner.runs_python, runner.computes_here, runner.rewindable) == (True,) * 4
    assert "changes variables" in runner.in_step


def test_what_the_data_began_is_ended():
    closed = []
    runner = LiveRunner(
        lambda callbacks: {}, "why", None, print, rewindable=False, close=lambda: closed.append(1)
    )
    assert not runner.rewindable
    runner.close()
    assert closed == [1]


def stepwise(model, step, *, steps=None, batch_size=16, rows=70):
    data = recognize(X[:rows], Y[:rows], batch_size=batch_size, steps=steps)
    return StepByStep(
        model, step, make_batches(GivenData(lambda: data), steps=steps, cache_bytes=1 << 30), steps
    )


def bare():
    """Returns a model without metrics, for steps that have logs of their own."""
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    return model


def test_logs_of_a_steps_own_are_those_of_the_last_batch():
    made = []
    validate = stepwise(bare(), lambda batch: made.append(batch) or {"own": len(made)}, steps=3)
    assert validate(callbacks_of(validate.model)) == {"own": 3}


def test_batches_that_are_missing_are_told_unless_the_validation_was_ended():
    validate = stepwise(bare(), lambda batch: {"own": 1.0}, steps=3, rows=20)

    class Ends(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = True

    validate(callbacks_of(validate.model, Ends()))
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        validate(callbacks_of(validate.model))


def test_steps_come_in_groups_where_keras_groups_them():
    model = bare()
    model.steps_per_execution = 2
    heard = []

    class Hears(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            heard.append(batch)

        def on_test_batch_end(self, batch, logs=None):
            heard.append(batch)

    stepwise(model, lambda batch: {"own": 1.0})(callbacks_of(model, Hears()))
    assert heard == [0, 1, 2, 3, 4, 5]


def test_a_step_that_returns_no_logs_is_refused():
    model = bare()
    with pytest.raises(TypeError, match="validation_step returned"):
        stepwise(model, lambda batch: 3.0)(callbacks_of(model))


class Held:
    def __init__(self, changed):
        self._changed, self.asked = changed, 0

    def changed(self):
        self.asked += 1
        return self._changed


@pytest.mark.parametrize(("changed", "expected"), [(None, "traced"), ("Scaled.scale", "late")])
def test_the_late_trace_is_taken_where_on_test_begin_has_set_what_the_early_one_holds(changed, expected):
    held = Held(changed)
    step = chosen_step(lambda batch: ("traced", batch), lambda batch: ("late", batch), held)
    assert [step(number) for number in range(3)] == [(expected, 0), (expected, 1), (expected, 2)]
    assert held.asked == 1


class Step:
    """A traced step that says what it got."""

    def __init__(self, preparation=None):
        self.preparation = preparation

    def step(self, batch):
        return {"got": batch}


@pytest.mark.parametrize(("preparation", "got"), [(None, 3), (lambda batch: batch + 1, 4)])
def test_a_batch_is_prepared_before_its_step_where_the_data_holds_it_otherwise(preparation, got):
    assert traced_step(Step(preparation))(3) == {"got": got}
    traces = []
    late = late_step(Step(preparation), lambda: traces.append(1) or (lambda batch: {"late": batch}))
    assert traces == []  # nothing before the first batch has come
    assert late(3) == {"late": got}
    assert traces == [1]


def test_an_eager_step_gets_what_the_users_function_prepares():
    step = eager_step(lambda batch: {"got": batch}, lambda x, y: (x + 1, y))
    x, y = step((np.float32(1), np.float32(2)))["got"]
    assert (float(x), float(y)) == (2.0, 2.0)
    assert eager_step(lambda batch: {"got": batch}, None)((1, 2)) == {"got": (1, 2)}


class OwnEvaluate(keras.Sequential):
    """Notes how it is called."""

    def evaluate(self, x=None, y=None, **arguments):
        self.asked = arguments
        return {"own": float(len(x))}


def test_a_models_own_evaluate_is_called_as_fit_calls_it():
    model = OwnEvaluate([keras.Input((12,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    callbacks = callbacks_of(model)
    assert OwnEvaluation(model, (X, Y, None), 16, 2)(callbacks) == {"own": 70.0}
    asked = model.asked
    assert (asked["batch_size"], asked["steps"], asked["callbacks"]) == (16, 2, callbacks)
    assert asked["return_dict"] is True


@pytest.mark.parametrize("given", [False, True])
def test_missing_batches_are_warned_of_as_by_keras(given):
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    data = rows.shuffle(9) if given else rows.filter(lambda x, y: True).shuffle(9)
    model = counting()
    step = trace_validation(model, model.test_step, rows.element_spec)
    batches = make_batches(GivenData(lambda: recognize(data)), steps=9, cache_bytes=0)
    validate = StepByStep(model, traced_step(step), batches, least=9)
    with pytest.warns(UserWarning, match="ran out"):
        validate(keras.callbacks.CallbackList([], model=model))
