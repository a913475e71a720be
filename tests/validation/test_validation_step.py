"""A validation step is traced once; what cannot be evaluated by the trace, or no longer, is told."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._support.reasons import Reason
from overlap_train._validation.validation_step import TracedWith, trace_validation
from tests.networks import FEATURES, subclassed
from tests.pools import sequential
from tests.validation.counting import counting
from tests.validation.test_evaluation import built, evaluator_of

SPEC = (tf.TensorSpec([None, FEATURES]), tf.TensorSpec([None], tf.int64))


def test_a_step_that_returns_no_logs_is_refused():
    with pytest.raises(TypeError, match=r"validation_step returned .*Tensor.*; expected a dict"):
        evaluator_of(built(), step=lambda batch: tf.zeros([]))


class InNumPy(keras.metrics.Metric):
    """Computes its result outside TensorFlow."""

    def __init__(self):
        super().__init__(name="in_numpy")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(y_pred))

    def result(self):
        return self.total.numpy() * 2


class OwnMetrics(keras.Sequential):
    @property
    def metrics(self):
        return [self.own]


def own_metrics():
    model = OwnMetrics([keras.Input((FEATURES,)), keras.layers.Dense(4)])
    model.own = keras.metrics.Mean(name="own")
    model.compile("sgd", "mse")
    return model


def drawing(model):
    return lambda batch: model.test_step((batch[0] + tf.random.normal([FEATURES]), batch[1]))


def updating(model):
    """Returns a step that leaves the results to whoever asks for them."""

    def step(batch):
        model.metrics[-1].update_state(batch[1], model(batch[0]))
        return {"rows": tf.shape(batch[0])[0]}

    return step


@pytest.mark.parametrize(
    ("build", "step", "reason"),
    [
        (counting, None, r"changes variables that are no metric of the model \(.*calls\)"),
        (own_metrics, None, r"OwnMetrics.metrics leaves out Keras's own loss tracker"),
        (
            lambda: sequential(metrics=[InNumPy()]),
            updating,
            r"cannot be computed in a compiled function; .*\[metric-python\]",
        ),
        (sequential, drawing, r"draws random numbers .*test_validation_step\.py:"),
        (sequential, None, None),
        (subclassed, None, None),
    ],
    ids=["writes a variable", "own metrics", "metric in NumPy", "random", "stock", "own call"],
)
def test_what_private_variables_would_not_evaluate_as_keras_does_is_validated_live_and_says_why(
    build, step, reason
):
    model = build()
    traced = trace_validation(model, step(model) if step else model.test_step, SPEC)
    if reason is None:
        assert traced.live is None
    else:
        assert re.search(reason, str(traced.live)), traced.live


def test_what_prepares_the_batches_counts_too_when_it_is_asked_whether_a_validation_is_live():
    model = sequential()
    _, batches, _ = evaluator_of(model, preprocess=lambda x, y: (x + tf.random.normal([FEATURES]), y))
    traced = trace_validation(model, model.test_step, batches.element_spec, batches.preparation)
    assert traced.live.identifier == "step-stateful"


class Kept(keras.metrics.Mean):
    """Counts all batches, whatever is reset."""

    def __init__(self):
        super().__init__(name="kept")
        self.ever = self.add_variable((), "zeros", name="ever")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.ever.assign_add(1.0)
        super().update_state(keras.ops.mean(y_pred))

    def reset_state(self):
        self.total.assign(0.0)
        self.count.assign(0.0)


class ByPython(keras.metrics.Metric):
    """Counts in Python."""

    def __init__(self):
        super().__init__(name="by_python")
        self.calls = 0

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.calls += 1

    def result(self):
        return float(self.calls)


def test_a_metric_that_is_never_set_back_goes_on_from_validation_to_validation():
    model = sequential(metrics=[Kept()])
    traced = trace_validation(model, model.test_step, SPEC)
    assert traced.live == Reason.of("metric-state", "reset_state does not set back kept/ever")


def test_metrics_that_python_computes_are_neither_reset_nor_read_in_a_trace():
    model = sequential(metrics=[ByPython()])
    traced = trace_validation(model, model.test_step, SPEC)
    assert (traced.reset, traced.result) == (None, None)
    assert traced.live == Reason.of("metric-python", "ByPython.result reads 'calls', which it may set itself")


def test_logs_of_the_metrics_names_are_the_metrics():
    model = sequential()
    stock = trace_validation(model, model.test_step, SPEC)
    assert not stock.own_logs
    own = trace_validation(model, lambda batch: {"norm": tf.norm(model(batch[0]))}, SPEC)
    assert own.own_logs
    names = {variable.name for variable in own.variables}
    assert any(name.endswith("hidden/kernel") for name in names)
    assert any(name.startswith("accuracy/") for name in names)  # which a reset sets


def test_it_is_traced_in_the_scope_that_is_asked_for():
    entered, model = [], sequential()

    def within(function):
        return lambda *arguments: entered.append(1) or function(*arguments)

    trace_validation(model, model.test_step, SPEC, within=within)
    assert len(entered) == 3  # the step, the reset and the result


class Scaled(keras.layers.Layer):
    default = 3

    def __init__(self):
        super().__init__()
        self.scale, self.shape_of, self.not_a_number = 1.0, (1, (2, 3)), float("nan")
        self.tables = {"a": 1}

    def call(self, inputs):
        return inputs * self.scale


class Weighted(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.weight = 1.0

    def call(self, y_true, y_pred):
        return self.weight * keras.ops.mean(y_pred - y_true, axis=-1)


class Counted(keras.metrics.MeanSquaredError):
    step = 1


@pytest.fixture(scope="module")
def model():
    inner = keras.Sequential([keras.Input((2,)), Scaled()])
    model = keras.Sequential([keras.Input((2,)), inner, keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("sgd", Weighted(), metrics=[Counted()])
    model.evaluate(np.ones((1, 2)), np.ones((1, 1)), verbose=0)
    return model


def scaled(model):
    return model.layers[0].layers[0]


def counted(model):
    return next(m for m in model.metrics[1].metrics if isinstance(m, Counted))


@pytest.mark.parametrize(
    ("owner", "name", "value", "found"),
    [
        (scaled, "scale", 2.0, "Scaled.scale"),
        (scaled, "shape_of", (1, (2, 4)), "Scaled.shape_of"),
        (scaled, "default", 4, "Scaled.default"),
        (lambda model: model.layers[1], "rate", 0.1, "Dropout.rate"),
        (lambda model: model.layers[-1], "trainable", False, "Dense.trainable"),
        (scaled, "told_later", 1, None),
        (lambda model: model.loss, "weight", 0.5, "Weighted.weight"),
        (counted, "step", 2, "Counted.step"),
        (scaled, "scale", 1.0, None),
        (scaled, "not_a_number", float("nan"), None),
        (scaled, "tables", {"a": 2}, None),
        (scaled, "_private", 1, None),
        (lambda model: model, "stop_training", True, None),
    ],
)
def test_what_is_set_to_another_value_is_named(model, monkeypatch, owner, name, value, found):
    state = TracedWith(model, model.test_step)
    assert state.changed() is None
    monkeypatch.setattr(owner(model), name, value, raising=False)
    assert state.changed() == found


class Hostile:
    @property
    def __class__(self):
        raise RuntimeError("nobody asks me")


@pytest.mark.filterwarnings("error")
def test_what_cannot_be_read_counts_as_set(model):
    held = Hostile()
    state = TracedWith(model, lambda batch: held.scale * batch)
    assert state.changed() == "something that its code may read"


def test_of_what_runs_eagerly_nothing_is_traced(model, monkeypatch):
    state = TracedWith(model, model.test_step)
    monkeypatch.setattr(scaled(model), "scale", 2.0)
    monkeypatch.setattr(model, "run_eagerly", True)
    assert state.changed() is None
