"""A step is traced without being run; that builds what is not built yet, and serves every loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._training.step import MetricsReader, Step, require_optimizer
from tests.networks import CLASSES, FEATURES, arrays, crossentropy

X, Y = arrays(8)
SPEC = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int64))


def unbuilt(optimizer="adam", **arguments):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(CLASSES)])
    model.compile(optimizer, crossentropy(), metrics=["accuracy"], **arguments)
    return model


def built(optimizer, kind=keras.Sequential):
    model = kind([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile(optimizer, crossentropy())
    return model


def ready(model, function=None, **options):
    """Returns a step that has been traced."""
    step = Step(model, function or model.train_step, **options)
    step.adopt(step.trace(SPEC))
    return step


def batch():
    return tf.constant(X), tf.constant(Y)


def test_the_logs_are_carried_only_where_the_metrics_do_not_tell_them():
    model = unbuilt()
    step = ready(model)
    assert not step.own_logs
    assert step.run_and_check(batch())[1] == []
    own = ready(model, lambda batch: {**model.train_step(batch), "extra": tf.constant(1.0)})
    assert own.own_logs
    carried = own.logs.packed(own.run_and_check(batch())[1])
    assert set(carried) == {"loss", "accuracy", "extra"}
    assert set(step.metrics()) == {"loss", "accuracy"}


@pytest.mark.parametrize("why", ["listened_to", "halt_on_nonfinite"])
def test_logs_that_somebody_reads_after_each_step_are_carried_though_the_metrics_tell_them(why):
    step = ready(unbuilt(), **{why: True})
    assert not step.own_logs, "at an epoch's end the metrics count all the same"
    assert set(step.logs.packed(step.run_and_check(batch())[1])) == {"loss", "accuracy"}


def test_logs_of_any_structure_come_back_as_they_were():
    """Nested ones, and one whose length differs from batch to batch."""
    model = built("sgd")

    def function(batch):
        return {"b": {"d": batch[0], "c": tf.reduce_sum(batch[0])}, "a": tf.constant(2, tf.int32)}

    step = ready(model, function)
    flat = step.run_and_check(batch())[1]
    logs = step.logs.packed(flat)
    assert set(logs) == {"a", "b"}
    assert set(logs["b"]) == {"c", "d"}
    np.testing.assert_array_equal(logs["b"]["d"], X)
    assert int(logs["a"]) == 2
    for shape, first, last in zip(step.logs.shapes, step.logs.empty(), flat, strict=True):
        assert first.dtype == last.dtype
        assert shape.is_compatible_with(first.shape)
        assert shape.is_compatible_with(last.shape)


def test_a_step_that_returns_no_logs_is_refused():
    with pytest.raises(TypeError, match=r"train_step returned .*; expected a dict of names and values"):
        ready(unbuilt(), lambda batch: tf.zeros([]))


def test_only_a_model_that_needs_an_optimizer_is_refused_without():
    """Not one whose `train_step` is its own, nor one that has nothing to train."""

    class Own(keras.Sequential):
        def train_step(self, data):
            return self.test_step(data)

    frozen = built(None)
    with pytest.raises(ValueError, match="no optimizer"):
        require_optimizer(frozen)
    frozen.trainable = False
    for model in (frozen, built("sgd"), built(None, Own)):
        require_optimizer(model)


def test_metrics_that_cannot_be_compiled_are_read_as_they_are():
    total = tf.Variable(1.0)
    reader = MetricsReader(lambda: {"mean": total.numpy() * 2})
    assert reader() == {"mean": 2.0}
    total.assign(3.0)
    assert reader() == {"mean": 6.0}


def test_a_metric_whose_result_is_a_variable_is_known():
    variable = keras.Variable(4.0)
    reader = MetricsReader(lambda: {"seen": variable, "mean": variable + 1.0})
    assert {name: float(value) for name, value in reader().items()} == {"seen": 4.0, "mean": 5.0}
    assert reader.live == {"seen"}
