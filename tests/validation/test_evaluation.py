"""A snapshot is evaluated as `keras.Model.evaluate` would, in any parts, without touching the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.validation_data import ValidationSource, make_batches, split_batches
from overlap_train._keras.data import recognize
from overlap_train._snapshot import ModelState
from overlap_train._validation.evaluation_by_xla import XlaEvaluator, may_evaluate
from overlap_train._validation.sets import make_evaluator
from overlap_train._validation.validation_step import trace_validation
from tests.networks import arrays
from tests.pools import sequential
from tests.training.test_execution import perceptron

X, Y = arrays(70)


def evaluator_of(
    model, data=(X, Y, None), *, batch_size=16, step=None, preprocess=None, kind=make_evaluator, **options
):
    given = ValidationSource(lambda: recognize(*data, batch_size=batch_size))
    batches = make_batches(given, steps=None, cache_bytes=1 << 30, preprocess=preprocess)
    traced = trace_validation(
        model, step or model.test_step, batches.element_spec, preparation=batches.preparation
    )
    state = ModelState(model, traced.variables)
    return state, batches, kind(model, state, traced, batches, **options)


def built(build=sequential):
    model = build()
    model.fit(X, Y, epochs=1, verbose=0)
    return model


def in_parts(evaluator, batches, values, parts):
    return [evaluator.evaluate(values, shard) for shard in split_batches(batches.num_batches, parts)]


def assert_logs_equal(actual, expected):
    assert set(actual) == set(expected)
    for name in expected:
        assert actual[name] == pytest.approx(expected[name], rel=1e-5, nan_ok=True), name


@pytest.mark.by_default("2")
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_add_up_to_evaluate(parts, evaluated):
    model, state, batches, evaluator = evaluated
    values = state.read()
    merged = evaluator.merge(in_parts(evaluator, batches, values, parts), values)
    expected = model.evaluate(X, Y, batch_size=16, verbose=0, return_dict=True)
    assert_logs_equal(merged.metrics, expected)
    assert evaluator.indivisible is None
    for left, theirs in zip(merged.metric_state, state.read_metrics(), strict=True):
        np.testing.assert_allclose(left, theirs, rtol=1e-5)


@pytest.mark.parametrize("rows", [70, 64])
def test_xla_evaluates_the_full_batches_of_arrays(rows):
    model, data = perceptron(), (X[:rows], Y[:rows], np.linspace(0, 1, rows))
    state, batches, evaluator = evaluator_of(model, data, kind=XlaEvaluator)
    values, expected = state.read(), model.evaluate(*data[:2], 16, 0, data[2], return_dict=True)
    model.fit(X, Y, verbose=0)
    evaluator.warm_up(values)
    for parts in (1, 3):
        merged = evaluator.merge(in_parts(evaluator, batches, values, parts), values)
        assert_logs_equal(merged.metrics, expected)
    assert evaluator._by_xla


@pytest.mark.parametrize(
    ("case", "chosen"),
    [
        ({}, True),
        ({"runs": 100}, False),
        ({"rows": 10}, False),
        ({"preprocess": lambda x, y: (x, y)}, False),
        ({"metrics": [lambda y_true, y_pred: keras.ops.max(y_pred, axis=-1)]}, False),
    ],
)
def test_xla_evaluates_only_what_it_computes_as_keras_does(case, chosen):
    options = {"rows": 70, "metrics": ["accuracy"], "runs": 10_000, "preprocess": None} | case
    model, rows = perceptron(metrics=options["metrics"]), options["rows"]
    data = (X[:rows], Y[:rows])
    _, batches, evaluator = evaluator_of(model, data, preprocess=options["preprocess"])
    assert may_evaluate(model, evaluator._step, batches, options["runs"]) == chosen


@pytest.mark.parametrize("x", [np.where(X > 2, np.nan, X), 3e38 * np.sign(X)])
def test_nan_in_the_data_or_made_by_the_model_is_evaluated_without_xla(x):
    model = perceptron()
    state, batches, evaluator = evaluator_of(model, (x, Y), kind=XlaEvaluator)
    values = state.read()
    merged = evaluator.merge(in_parts(evaluator, batches, values, 2), values)
    assert_logs_equal(merged.metrics, model.evaluate(x, Y, 16, 0, return_dict=True))


def test_what_cannot_be_traced_for_full_batches_is_left_to_the_first_evaluation():
    _, _, evaluator = evaluator_of(perceptron(), (X, Y, np.ones((70, 3))), kind=XlaEvaluator)
    assert evaluator._part_by_xla is None


def test_it_is_the_snapshot_that_is_evaluated_and_the_model_stays_untouched(evaluated):
    model, state, batches, evaluator = evaluated
    snapshot = state.read()
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    model.fit(X, Y, epochs=3, verbose=0)
    now = [
        keras.ops.convert_to_numpy(v)
        for v in (*model.variables, *model.metrics_variables, *model.optimizer.variables)
    ]
    actual = evaluator.merge(in_parts(evaluator, batches, snapshot, 2), snapshot).metrics
    assert_logs_equal(actual, expected)
    after = (*model.variables, *model.metrics_variables, *model.optimizer.variables)
    for value, variable in zip(now, after, strict=True):
        np.testing.assert_array_equal(value, variable)


def test_a_variable_outside_the_model_is_evaluated_as_the_snapshot_holds_it():
    model, scale = built(), tf.Variable(1.0)

    def step(batch):
        return model.test_step((batch[0] * scale, batch[1]))

    state, batches, evaluator = evaluator_of(model, step=step)
    snapshot = state.read()
    scale.assign(-3.0)
    now = state.read()
    for values, factor in ((snapshot, 1.0), (now, -3.0)):
        actual = evaluator.merge(in_parts(evaluator, batches, values, 2), values).metrics
        assert_logs_equal(actual, model.evaluate(factor * X, Y, verbose=0, return_dict=True))
    assert float(scale) == -3.0


def test_the_next_evaluation_of_the_same_step_compiles_nothing_and_reads_the_new_data():
    model, traces, data = built(), [], [(X, Y), (X[3:] + 1, Y[3:])]

    def step(batch):
        traces.append(1)
        return model.test_step(batch)

    given = [ValidationSource(lambda each=each: recognize(*each, batch_size=16)) for each in data]
    batches = [make_batches(each, steps=None, cache_bytes=0) for each in given]
    traced = trace_validation(model, step, batches[0].element_spec)
    state = ModelState(model, traced.variables)
    values, seen = state.read(), len(traces)
    evaluators = [make_evaluator(model, state, traced, each) for each in batches]
    for evaluator, each, rows in zip(evaluators, batches, data, strict=True):
        actual = evaluator.merge(in_parts(evaluator, each, values, 2), values).metrics
        assert_logs_equal(actual, model.evaluate(*rows, verbose=0, return_dict=True))
    assert evaluators[0]._functions is evaluators[1]._functions
    assert len(traces) == seen


def test_batches_of_two_sizes_share_a_step_and_are_each_taken():
    """A step that was traced for any size; the function that takes a batch is of one."""
    model = sequential()
    kinds = [tf.data.Dataset.from_tensor_slices((X, Y)).batch(n, drop_remainder=True) for n in (20, 16)]
    trace = trace_validation(
        model, model.test_step, tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).element_spec
    )
    state = ModelState(model, trace.variables)
    for kind, rows in zip(kinds, (60, 64), strict=True):
        given = ValidationSource(lambda kind=kind: recognize(kind))
        batches = make_batches(given, steps=None, cache_bytes=0)
        evaluator = make_evaluator(model, state, trace, batches)
        values = state.read()
        result = evaluator.merge([evaluator.evaluate(values, batches.begin())], values)
        expected = model.evaluate(X[:rows], Y[:rows], batch_size=rows, verbose=0, return_dict=True)
        np.testing.assert_allclose(result.metrics["loss"], expected["loss"], rtol=1e-5)
