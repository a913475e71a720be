"""Metrics that the user has written, or attached late, are read and set back by Python in Keras's order.

Each program notes what is called; histories, calls and weights are those of Keras, while the training runs
ahead of its validation.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ValidationPolicy
from tests.networks import arrays, linear, sequential
from tests.whole_fits.comparing import VALIDATION, assert_as_keras, assert_returns_as_keras, slices

X, Y = arrays(64)
ALWAYS = ValidationPolicy(overlap="always")
CALLS: list = []


def note(call):
    """Notes a call that Keras makes operation by operation; how often it traces one is its own affair."""
    if tf.executing_eagerly():
        CALLS.append(call)
    return tf.executing_eagerly()


class WithNote(keras.metrics.Mean):
    """The share of right answers; notes when it is read and set back."""

    def __init__(self, name="own", **options):
        super().__init__(name=name, **options)
        self.scale, self.reads, self.resets = 1.0, 0, 0

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int64")
        right = keras.ops.equal(keras.ops.cast(keras.ops.argmax(y_pred, -1), "int64"), labels)
        super().update_state(keras.ops.cast(right, "float32"))

    def result(self):
        self.reads += note("read")
        return super().result()

    def reset_state(self):
        self.resets += note("reset")
        super().reset_state()


class ReadsASetting(WithNote):
    def result(self):
        return self.scale * super().result()


class InNumPy(WithNote):
    def result(self):
        value = super().result()
        return np.float32(np.round(float(value), 2)) if tf.executing_eagerly() else value


class CountsItsReads(WithNote):
    def result(self):
        return super().result() + self.reads


class CountsItsResets(WithNote):
    def result(self):
        return super().result() + self.resets


class IsNeverSetBack(WithNote):
    def reset_state(self):
        note("reset")


class SetsAVariable(WithNote):
    """Moves a weight of its model whenever it is set back."""

    def reset_state(self):
        super().reset_state()
        if self.resets > 3 and tf.executing_eagerly() and hasattr(self, "weight"):
            self.weight.assign_add(keras.ops.ones_like(self.weight) * 0.01)


METRICS = [WithNote, ReadsASetting, InNumPy, CountsItsReads, CountsItsResets, IsNeverSetBack, SetsAVariable]


class OwnResults(keras.Sequential):
    """Adds a count to the logs."""

    count = 0

    def get_metrics_result(self):
        self.count += note("results")
        return {**super().get_metrics_result(), "count": float(self.count)}


class OwnReset(keras.Sequential):
    """Sets back what it likes."""

    def reset_metrics(self):
        note("reset all")
        super().reset_metrics()


class Halves(keras.callbacks.Callback):
    """Changes the training after an epoch, and what a metric is scaled with behind another."""

    def on_epoch_end(self, epoch, logs=None):
        CALLS.append(("end", epoch, dict(logs)))
        if epoch == 1:
            self.model.optimizer.learning_rate = 0.01
        if epoch == 2:
            for metric in self.model.metrics:
                for each in getattr(metric, "metrics", [metric]):
                    if isinstance(each, WithNote):
                        each.scale = 0.5


class Stops(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        CALLS.append(("end", epoch, dict(logs)))
        self.model.stop_training = epoch == 2


def network(metric, kind=keras.Sequential):
    made = metric()
    model = linear(lambda: keras.layers.Dense(8, "relu"), kind=kind, optimizer="adam", metrics=[made])
    if metric is SetsAVariable:
        made.weight = model.layers[-1].bias
    return model


def fit(trained, *callbacks, by_dataset=False, **options):
    if by_dataset:
        given = {"x": slices(X, Y).batch(16), "validation_data": slices(*VALIDATION).batch(16)}
    else:
        given = {"x": X, "y": Y, "validation_data": VALIDATION, "shuffle": False, "batch_size": 16}
    return trained.fit(**given | {"epochs": 5, "verbose": 0} | options, callbacks=list(callbacks))


def assert_called_as_by_keras(build, *callbacks, **options):
    def run(trained):
        CALLS.clear()
        fit(trained, *(make() for make in callbacks), **options)
        return list(CALLS)

    trainer = assert_as_keras(run, ALWAYS, build=build)
    assert not any("in step with the training:" in text for text in trainer.messages)


@pytest.mark.parametrize("by_dataset", [False, True], ids=["arrays", "dataset"])
@pytest.mark.parametrize("callbacks", [(), (Halves,)], ids=["alone", "changes"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.by_default("SetsAVariable-alone-arrays")
def test_a_metric_is_read_and_set_back_when_keras_does_it(metric, callbacks, by_dataset):
    assert_called_as_by_keras(lambda: network(metric), *callbacks, by_dataset=by_dataset)


@pytest.mark.parametrize(
    ("build", "callback", "options"),
    [
        (lambda: network(WithNote, OwnResults), Halves, {}),
        (lambda: network(WithNote, OwnReset), Halves, {}),
        (lambda: network(CountsItsResets), Stops, {}),
        (lambda: network(CountsItsReads), Stops, {}),
        (lambda: network(CountsItsReads), Halves, {"by_dataset": True, "validation_freq": 2}),
    ],
    ids=["own results", "own reset", "stops, resets", "stops, reads", "epochs without a validation"],
)
@pytest.mark.by_default("epochs without a validation")
def test_so_are_a_model_s_own_and_those_of_epochs_that_are_undone_or_not_validated(build, callback, options):
    assert_called_as_by_keras(build, callback, **options)


@pytest.mark.by_default("InNumPy")
@pytest.mark.parametrize("metric", [WithNote, InNumPy, CountsItsReads, IsNeverSetBack])
def test_evaluate_reads_them_once(metric):
    def run(trained):
        trained.evaluate(*VALIDATION, verbose=0)  # before it Keras has no metric yet that it could set back
        CALLS.clear()
        logs = [trained.evaluate(*VALIDATION, verbose=0, return_dict=True) for _ in range(2)]
        return logs, list(CALLS)

    assert_returns_as_keras(run, lambda: network(metric))


# Metrics that are attached to the model while it is in use.


class OwnLoss(keras.Sequential):
    """Its test step returns the loss of the batch under the name of the metric."""

    def test_step(self, data):
        x, y = data
        loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=False), training=False)
        self._loss_tracker.update_state(loss)
        return {"loss": loss}


def own_step():
    return linear(kind=OwnLoss)


def attach(model):
    model.extra = keras.metrics.Mean(name="extra")
    model.extra.update_state(5.0)


@pytest.mark.parametrize("build", [sequential, own_step])
@pytest.mark.by_default("own_step")
def test_a_metric_attached_after_an_evaluate_is_set_back_by_the_next(build):
    def run(trained):
        model = getattr(trained, "model", trained)
        first = trained.evaluate(*VALIDATION, verbose=0, return_dict=True)
        attach(model)
        second = trained.evaluate(*VALIDATION, verbose=0, return_dict=True)
        assert sorted(first) == sorted(second)
        return first, second, float(model.extra.result()), [metric.name for metric in model.metrics]

    *_, extra, _ = assert_returns_as_keras(run, build)
    assert extra == 0.0


class OwnTrainingLoss(keras.Sequential):
    """Its training step returns the loss of the batch under the name of the metric."""

    def train_step(self, data):
        super().train_step(data)
        x, y = data
        return {"loss": self.compute_loss(x=x, y=y, y_pred=self(x, training=False), training=False)}


class NamesBoth(OwnLoss):
    """Its logs are the metrics' once a metric is attached."""

    def test_step(self, data):
        logs = super().test_step(data)
        return {**logs, "extra": 2 * logs["loss"]}


class AttachesAt(keras.callbacks.Callback):
    """Adds a metric in a hook of the second epoch, or of the first validation, and reads it behind each."""

    def __init__(self, hook):
        super().__init__()
        self.hook, self.seen = hook, []

    def on_epoch_begin(self, epoch, logs=None):
        if (self.hook, epoch) == ("on_epoch_begin", 1):
            attach(self.model)

    def on_epoch_end(self, epoch, logs=None):
        if hasattr(self.model, "extra"):
            self.seen.append(float(self.model.extra.result()))
        if (self.hook, epoch) == ("on_epoch_end", 1):
            attach(self.model)

    def on_test_begin(self, logs=None):
        if self.hook == "on_test_begin" and not hasattr(self.model, "extra"):
            attach(self.model)


@pytest.mark.parametrize("kind", [OwnLoss, OwnTrainingLoss, NamesBoth, keras.Sequential])
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end", "on_test_begin"])
@pytest.mark.by_default("on_epoch_begin-OwnTrainingLoss", "on_epoch_end-OwnLoss", "on_epoch_begin-Sequential")
def test_whose_logs_count_is_asked_again_once_a_metric_is_attached(hook, kind):
    """Keras takes the metrics where a step's logs have the same names, and asks at the end of each epoch."""

    def run(trained):
        attaches = AttachesAt(hook)
        return fit(trained, attaches, epochs=4), attaches.seen

    _, seen = assert_returns_as_keras(run, lambda: linear(kind=kind), ALWAYS)
    assert 0.0 in seen


class ListsOne(keras.Sequential):
    """Lists its loss, in the second epoch a metric of the same name that nothing updates."""

    epoch = 0

    @property
    def metrics(self):
        return [self.other if self.epoch == 1 else self._loss_tracker]


def test_which_metrics_a_model_lists_is_asked_again_in_each_epoch():
    def build():
        model = linear(kind=ListsOne)
        model.other = keras.metrics.Mean(name="loss")
        return model

    def run(trained):
        model = getattr(trained, "model", trained)
        tells = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: setattr(model, "epoch", epoch))
        return fit(trained, tells, epochs=3).history

    history = assert_returns_as_keras(run, build, ALWAYS)
    assert history["loss"][1] == 0.0
