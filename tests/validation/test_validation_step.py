"""A validation step is traced once; what cannot be evaluated by the trace, or no longer, is told."""

import re

import keras
import pytest
import tensorflow as tf

from overlap_train._validation.validation_step import Surroundings, trace_validation
from tests.networks import FEATURES, subclassed
from tests.pools import sequential
from tests.validation.counting import counting
from tests.validation.test_evaluation import built, evaluator_of

SPEC = (tf.TensorSpec([None, FEATURES]), tf.TensorSpec([None], tf.int64))


def test_a_step_that_returns_no_logs_is_refused():
    with pytest.raises(TypeError, match=r"validation_step returned .*Tensor.*; expected a dict"):
        evaluator_of(built(), step=lambda batch: tf.zeros([]))


class ByPython(keras.metrics.Metric):
    """Counts in Python."""

    def __init__(self):
        super().__init__(name="by_python")
        self.calls = 0

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.calls += 1

    def result(self):
        return float(self.calls)


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


@pytest.mark.by_default("metric in Python", "own metrics")
@pytest.mark.parametrize(
    ("build", "step", "reason"),
    [
        (counting, None, r"changes variables that are no metric of the model \(.*calls\)"),
        (own_metrics, None, r"OwnMetrics.metrics leaves out Keras's own loss tracker"),
        (lambda: sequential(metrics=[ByPython()]), updating, None),
        (sequential, drawing, r"draws random numbers .*test_validation_step\.py:"),
        (sequential, None, None),
        (subclassed, None, None),
    ],
    ids=["writes a variable", "own metrics", "metric in Python", "random", "stock", "own call"],
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


def test_metrics_that_python_computes_are_neither_reset_nor_read_in_a_trace_but_on_several_hosts():
    model = sequential(metrics=[ByPython()])
    traced = trace_validation(model, model.test_step, SPEC)
    assert (traced.reset, traced.result, traced.live) == (None, None, None)
    assert traced.by_python
    several = Surroundings(traces_metrics=True)
    assert not trace_validation(model, model.test_step, SPEC, around=several).by_python
