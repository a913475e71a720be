"""A snapshot is evaluated as `keras.Model.evaluate` would, in any parts, without touching the model."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.data.shards import make_batches, split_batches
from overlap_train.snapshot import ModelState
from overlap_train.validation.evaluation import SnapshotEvaluator, weights_of
from tests.models import CLASSES, FEATURES, arrays, crossentropy, sequential, subclassed

X, Y = arrays(70)


def evaluator_of(model, data=(X, Y, None), *, batch_size=16, step=None):
    state = ModelState(model)
    batches = make_batches(*data, batch_size=batch_size, steps=None, cache_bytes=1 << 30)
    return state, batches, SnapshotEvaluator(model, state, step or model.test_step, batches)


def built(build=sequential):
    model = build()
    model.fit(X, Y, epochs=1, verbose=0)
    return model


def in_parts(evaluator, batches, weights, parts):
    return [evaluator.evaluate(weights, shard) for shard in split_batches(batches.num_batches, parts)]


def assert_logs_equal(actual, expected):
    assert set(actual) == set(expected)
    for name in expected:
        assert actual[name] == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.parametrize("build", [sequential, subclassed])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_add_up_to_evaluate(build, parts):
    model = built(build)
    state, batches, evaluator = evaluator_of(model)
    results = in_parts(evaluator, batches, weights_of(state.read()), parts)
    expected = model.evaluate(X, Y, batch_size=16, verbose=0, return_dict=True)
    assert_logs_equal(evaluator.merge(results).metrics, expected)
    assert evaluator.indivisible is None


def test_it_is_the_snapshot_that_is_evaluated_and_the_model_stays_untouched():
    model = built()
    state, batches, evaluator = evaluator_of(model)
    snapshot = state.read()
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    model.fit(X, Y, epochs=3, verbose=0)
    now = [
        keras.ops.convert_to_numpy(v)
        for v in (*model.variables, *model.metrics_variables, *model.optimizer.variables)
    ]
    actual = evaluator.merge(in_parts(evaluator, batches, weights_of(snapshot), 2)).metrics
    assert_logs_equal(actual, expected)
    after = (*model.variables, *model.metrics_variables, *model.optimizer.variables)
    for value, variable in zip(now, after, strict=True):
        np.testing.assert_array_equal(value, variable)


def test_no_compiled_function_captures_a_variable_of_the_model():
    """Else a worker would see the training go on."""
    model = built(subclassed)
    _, _, evaluator = evaluator_of(model)
    handles = {id(v.value.handle) for v in (*model.variables, *model.metrics_variables)}
    for function in (evaluator._run, evaluator._start, evaluator._add, evaluator._result):
        assert not handles & {id(tensor) for tensor in function.captured_inputs}


def test_threads_agree_bit_by_bit():
    model = built(subclassed)
    state, batches, evaluator = evaluator_of(model)
    weights, results = weights_of(state.read()), []
    barrier = threading.Barrier(4)

    def work():
        barrier.wait(30)
        results.append(evaluator.merge(in_parts(evaluator, batches, weights, 3)).metrics)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(result == results[0] for result in results)


def test_the_order_of_the_parts_is_that_of_the_addition():
    model = built()
    state, batches, evaluator = evaluator_of(model)
    results = in_parts(evaluator, batches, weights_of(state.read()), 5)
    total = np.array([np.asarray(r.state[0]) for r in results])
    merged = evaluator._add(evaluator._add(results[0].state, results[1].state), results[2].state)
    np.testing.assert_array_equal(merged[0], (total[0] + total[1]) + total[2])


def test_a_stream_gives_the_same():
    model = built()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(70, seed=1).batch(16)
    state, batches, evaluator = evaluator_of(model, (data, None, None))
    stream = batches.begin()
    results = [evaluator.evaluate(weights_of(state.read()), stream) for _ in range(2)]
    assert [r.batches for r in results] == [5, 0]
    assert_logs_equal(evaluator.merge(results).metrics, model.evaluate(X, Y, verbose=0, return_dict=True))


def recording(evaluator, *names):
    """Lets compiled functions note that they ran, in the list that is returned."""
    ran = []

    def noting(name, function):
        def run(*arguments):
            ran.append(name)
            return function(*arguments)

        return run

    for name in names:
        if getattr(evaluator, name) is not None:
            setattr(evaluator, name, noting(name, getattr(evaluator, name)))
    return ran


@pytest.mark.parametrize("kind", ["arrays", "cached", "streamed"])
def test_warming_up_draws_no_batch_and_leaves_no_trace(kind):
    model, seen = built(), []

    def step(batch):
        tf.py_function(lambda x: seen.append(len(x)), [batch[0]], [])
        return model.test_step(batch)

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    data = data.shuffle(5, seed=1) if kind == "streamed" else data
    source = (X, Y, None) if kind == "arrays" else (data, None, None)
    state, batches, evaluator = evaluator_of(model, source, step=step)
    if kind == "cached":
        batches.fill()
    before = [keras.ops.convert_to_numpy(v) for v in (*model.variables, *model.metrics_variables)]
    prepared = recording(evaluator, "_run", "_start", "_add", "_result")
    evaluator.warm_up(evaluator.read_weights())
    assert prepared == ["_start" if kind == "streamed" else "_run", "_add", "_result"]
    assert seen == []
    for value, variable in zip(before, (*model.variables, *model.metrics_variables), strict=True):
        np.testing.assert_array_equal(value, variable)
    weights = weights_of(state.read())
    if kind == "streamed":
        results = [evaluator.evaluate(weights, batches.begin())]
    else:
        results = in_parts(evaluator, batches, weights, 2)
    assert sorted(seen) == [6, 16, 16, 16, 16]
    expected = model.evaluate(X, Y, batch_size=16, verbose=0, return_dict=True)
    assert_logs_equal(evaluator.merge(results).metrics, expected)


def test_warming_up_runs_nothing_that_an_evaluation_would_not():
    model = built()
    _, _, own_logs = evaluator_of(model, step=lambda batch: {"rows": tf.shape(batch[0])[0]})
    assert own_logs.indivisible
    prepared = recording(own_logs, "_run", "_add", "_result")
    own_logs.warm_up(own_logs.read_weights())
    assert prepared == ["_run"]


def test_no_batch_at_all_is_an_error():
    model = built()
    _, _, evaluator = evaluator_of(model)
    with pytest.raises(ValueError, match="validation data is empty"):
        evaluator.merge([])


def test_logs_of_the_step_s_own_are_those_of_the_last_batch_and_cannot_be_divided():
    model = built()

    def step(batch):
        return {"largest": tf.reduce_max(batch[0])}

    state, batches, evaluator = evaluator_of(model, step=step)
    assert "logs of its own" in evaluator.indivisible
    results = in_parts(evaluator, batches, weights_of(state.read()), 1)
    assert evaluator.merge(results).metrics == {"largest": pytest.approx(X[64:].max())}


def test_a_step_that_returns_no_logs_is_refused():
    with pytest.raises(TypeError, match=r"validation_step returned .*Tensor; expected a dict"):
        evaluator_of(built(), step=lambda batch: tf.zeros([]))


class Counting(keras.layers.Layer):
    """Counts its calls, also in validation, and lets the count into the output."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x * (1.0 + 0.01 * self.calls)


def test_variables_that_validation_changes_are_carried_and_handed_back():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((FEATURES,)), Counting(), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy())
    model.evaluate(X[:4], Y[:4], verbose=0)
    state, batches, evaluator = evaluator_of(model)
    assert [v.name for v in evaluator.mutated] == ["calls"]
    assert "calls" in evaluator.indivisible
    before = float(model.layers[0].calls)
    results = in_parts(evaluator, batches, weights_of(state.read()), 1)
    assert float(model.layers[0].calls) == before
    assert float(evaluator.mutated_values(results)[0]) == before + 5
    expected = model.evaluate(X, Y, batch_size=16, verbose=0, return_dict=True)
    assert_logs_equal(evaluator.merge(results).metrics, expected)
