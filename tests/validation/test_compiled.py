"""The compiled functions of an evaluation hold no variable of the model, and add and compute apart."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._snapshot import ModelState
from overlap_train._validation.compiled import EvaluationFunctions
from overlap_train._validation.validation_step import trace_validation
from tests.networks import FEATURES, arrays, subclassed
from tests.pools import sequential
from tests.validation.test_evaluation import built, evaluator_of

X, Y = arrays(70)
SPEC = (tf.TensorSpec([None, FEATURES]), tf.TensorSpec([None], tf.int64))


def functions_of(evaluator):
    names = ("start", "part", "one", "result")  # `add` is no compiled one
    found = (getattr(evaluator._functions, name) for name in names)
    return [function for function in found if function is not None]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_no_compiled_function_captures_a_variable_of_the_model_or_of_a_closure(one_by_one):
    """Else a worker would see the training go on."""
    model, scale = built(subclassed), tf.Variable(2.0)

    def step(batch):
        return model.test_step((batch[0] * scale, batch[1]))

    _, _, evaluator = evaluator_of(model, step=step, batch_by_batch=one_by_one)
    functions = functions_of(evaluator)
    assert len(functions) == (3 if one_by_one else 2)
    known = [v.value for v in (*model.variables, *model.metrics_variables)]
    handles = {id(v.handle) for v in (*known, scale)}
    for function in functions:
        assert not handles & {id(tensor) for tensor in function.captured_inputs}
        assert not list(function.variables)


@pytest.fixture(scope="module")
def one_by_one():
    """Returns functions of single batches, the values that they take, and a model that agrees with them."""
    model = sequential()
    model.evaluate(X, Y, verbose=0)  # which builds the metrics
    step = trace_validation(model, model.test_step, SPEC)
    state = ModelState(model, step.variables)
    functions = EvaluationFunctions(step, state.metrics, SPEC, carries_logs=True)
    handles = {id(handle): variable for variable in state.variables for handle in variable.handles}
    values = [handles[id(variable.handle)].read() for variable in functions.variables]
    return functions, values, model


def test_a_set_is_gone_through_from_reset_metrics_on(one_by_one):
    functions, values, model = one_by_one
    state = functions.start(values)
    assert all(float(tf.reduce_sum(value)) == 0.0 for value in state)
    for rows in (slice(0, 50), slice(50, 70)):
        state, logs = functions.one(values, state, (X[rows], Y[rows]))
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    result = functions.result(values, state)
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-5)
    assert len(logs) == 2
    assert functions.part is None
    assert not functions.warm


def test_states_of_parts_add_up(one_by_one):
    functions, values, _ = one_by_one
    start = functions.start(values)
    first, _ = functions.one(values, start, (X[:50], Y[:50]))
    second, _ = functions.one(values, start, (X[50:], Y[50:]))
    both, _ = functions.one(values, first, (X[50:], Y[50:]))
    for added, together in zip(functions.add(first, second), both, strict=True):
        np.testing.assert_allclose(added, together, rtol=1e-6)


def test_what_does_not_add_up_has_no_sum_and_logs_that_count_no_result():
    model = sequential()
    model.evaluate(X, Y, verbose=0)
    own = trace_validation(model, lambda batch: {"norm": tf.norm(model(batch[0]))}, SPEC)
    state = ModelState(model, own.variables)
    functions = EvaluationFunctions(own, state.metrics, SPEC, carries_logs=True, divisible=False)
    assert (functions.add, functions.result) == (None, None)
