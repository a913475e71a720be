"""The runner gives each worker its part and puts the parts together again."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.given_data import GivenData
from overlap_train._data.validation_data import make_batches
from overlap_train._keras.data import recognize
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._validation.evaluation import SnapshotEvaluator
from overlap_train._validation.live import LiveRunner, StepByStep, traced_step
from overlap_train._validation.pool import WorkerPool
from overlap_train._validation.runner import ValidationRunner
from overlap_train._validation.validation_step import trace_validation
from tests.networks import arrays
from tests.pools import sequential
from tests.validation.test_evaluation import counting

X, Y = arrays(70)


@pytest.fixture
def pool():
    with WorkerPool(3) as pool:
        yield pool


def evaluator_of(model, data=(X, Y)):
    x, y = data if isinstance(data, tuple) else (data, None)
    given = GivenData(lambda: recognize(x, y, batch_size=16))
    batches = make_batches(given, steps=None, cache_bytes=1 << 30)
    step = trace_validation(model, model.test_step, batches.element_spec)
    state = ModelState(model, step.variables)
    return state, batches, SnapshotEvaluator(model, state, step, batches)


def runner_of(model, data, pool, spans=None):
    state, batches, evaluator = evaluator_of(model, data)
    on_span = (spans if spans is not None else []).append
    return state, ValidationRunner(evaluator, batches, pool, on_span, state.read())


def dataset(size=16):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


@pytest.mark.parametrize(
    "data",
    [(X, Y), dataset(), dataset().filter(lambda x, y: True), dataset().shuffle(5, seed=1), dataset(50)],
    ids=["arrays", "cached", "of unknown size", "streamed", "fewer batches than workers"],
)
def test_every_kind_of_data_gives_the_numbers_of_evaluate(data, pool):
    model = sequential()
    model.fit(X, Y, verbose=0)
    state, runner = runner_of(model, data, pool)
    for _ in range(2):
        actual = runner.evaluate(state.read()).metrics
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert actual == pytest.approx(expected, rel=1e-5)
    runner.close()


def test_spans_name_epoch_step_and_part(pool):
    model, spans = sequential(), []
    model.fit(X, Y, verbose=0)
    state, runner = runner_of(model, (X, Y), pool, spans)
    futures = runner.start(Snapshot(epoch=4, step=60, values=state.read()))
    outcomes = [future.result(30) for future in futures]
    assert [outcome.span.details["shard"] for outcome in outcomes] == [0, 1, 2]
    assert [(s.name, s.epoch, s.step) for s in spans] == [("prepare", None, None), *[("validate", 4, 60)] * 3]
    assert all(s.thread.startswith("validation-") and s.end_s >= s.start_s for s in spans)


def live_runner_of(model, spans=None):
    given = GivenData(lambda: recognize(X, Y, batch_size=16))
    batches = make_batches(given, steps=None, cache_bytes=1 << 30)
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


def test_the_evaluator_is_warmed_up_by_a_worker_and_a_failure_of_that_is_no_failure(pool, monkeypatch):
    model, warmed = sequential(), threading.Event()
    model.fit(X, Y, verbose=0)

    def fails(evaluator, values):
        assert threading.current_thread().name.startswith("validation-")
        warmed.set()
        raise ValueError("a metric that cannot do without a batch")

    monkeypatch.setattr(SnapshotEvaluator, "warm_up", fails)
    state, runner = runner_of(model, (X, Y), pool)
    assert warmed.wait(30)
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert runner.evaluate(state.read()).metrics == pytest.approx(expected, rel=1e-5)


def test_each_device_is_prepared_once_before_its_first_part(monkeypatch):
    model, spans, order = sequential(), [], []
    model.fit(X, Y, verbose=0)
    state, batches, evaluator = evaluator_of(model)
    warm_up, evaluate = evaluator.warm_up, evaluator.evaluate
    monkeypatch.setattr(evaluator, "warm_up", lambda values: (warm_up(values), order.append("warm")))
    monkeypatch.setattr(
        evaluator, "evaluate", lambda *arguments: (order.append("part"), evaluate(*arguments))[1]
    )
    with WorkerPool(3) as pool:
        runner = ValidationRunner(evaluator, batches, pool, spans.append, state.read(), devices=("CPU:0",))
        actual = runner.evaluate(state.read()).metrics
    assert order == ["warm", "part", "part", "part"]
    assert [span.name for span in spans] == ["prepare", "validate", "validate", "validate"]
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert actual == pytest.approx(expected, rel=1e-5)


def test_the_last_worker_merges_the_parts(monkeypatch):
    model, threads = sequential(), []
    model.fit(X, Y, verbose=0)
    state, batches, evaluator = evaluator_of(model)
    merge = evaluator.merge

    def merged(*arguments):
        threads.append(threading.current_thread().name)
        return merge(*arguments)

    monkeypatch.setattr(evaluator, "merge", merged)
    with WorkerPool(3) as pool:
        runner = ValidationRunner(evaluator, batches, pool, lambda span: None, state.read())
        actual = runner.evaluate(state.read()).metrics
    assert len(threads) == 1
    assert threads[0].startswith("validation-")
    assert actual == pytest.approx(model.evaluate(X, Y, verbose=0, return_dict=True), rel=1e-5)


def test_what_cannot_be_merged_is_told_by_the_thread_that_asks(monkeypatch):
    model = sequential()
    model.fit(X, Y, verbose=0)
    state, batches, evaluator = evaluator_of(model)
    monkeypatch.setattr(evaluator, "merge", lambda *_: divmod(1, 0))
    with WorkerPool(3) as pool:
        runner = ValidationRunner(evaluator, batches, pool, lambda span: None, state.read())
        with pytest.raises(ZeroDivisionError):
            runner.evaluate(state.read())
