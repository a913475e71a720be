"""Metrics whose `result` or `reset_state` the user has written are run by Python in Keras's order.

Each program notes what is called; histories, calls and weights are those of Keras, while the training runs
ahead of its validation.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import VALIDATION_ROWS, arrays, assert_same_history, assert_same_weights, crossentropy
from tests.seeds import set_random_seed

X, Y = arrays(64)
VALIDATION = arrays(VALIDATION_ROWS, 1)
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
        value = super().result()
        return value + self.reads


class CountsItsResets(WithNote):
    def result(self):
        return super().result() + self.resets


class IsNeverSetBack(WithNote):
    def reset_state(self):
        note("reset")


class BeginsWithItsLastResult(WithNote):
    def reset_state(self):
        last = self.total / keras.ops.maximum(self.count, 1.0)
        super().reset_state()
        self.total.assign(last)


class KeepsItsBest(WithNote):
    best = 0.0

    def result(self):
        value = super().result()
        if not tf.executing_eagerly():
            return value
        self.best = max(self.best, float(value))
        return self.best


class SetsAVariable(WithNote):
    """Moves a weight of its model whenever it is set back."""

    def reset_state(self):
        super().reset_state()
        if self.resets > 3 and tf.executing_eagerly() and hasattr(self, "weight"):
            self.weight.assign_add(keras.ops.ones_like(self.weight) * 0.01)


METRICS = [WithNote, ReadsASetting, InNumPy, CountsItsReads, CountsItsResets, IsNeverSetBack]
METRICS += [BeginsWithItsLastResult, KeepsItsBest, SetsAVariable]
# Their reset differs each time, so that running ahead is undone until it is given up.
NEVER_ALIKE = (IsNeverSetBack, BeginsWithItsLastResult)


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


def network(metric=None, kind=keras.Sequential):
    set_random_seed(7)
    model = kind(
        [keras.Input((X.shape[1],)), keras.layers.Dense(8, "relu"), keras.layers.Dense(int(Y.max()) + 1)]
    )
    metrics = [] if metric is None else [metric()]
    model.compile("adam", crossentropy(), metrics=metrics)
    if isinstance(metric, type) and issubclass(metric, SetsAVariable):
        metrics[0].weight = model.layers[-1].bias
    return model


def dataset(rows):
    return tf.data.Dataset.from_tensor_slices(rows).batch(16)


def run(fit, by_dataset, callbacks, **options):
    """Returns the history and the calls of one fit."""
    CALLS.clear()
    if by_dataset:
        data, rest = (dataset((X, Y)),), {"validation_data": dataset(VALIDATION)}
    else:
        data, rest = (X, Y), {"validation_data": VALIDATION, "shuffle": False, "batch_size": 16}
    history = fit(*data, epochs=5, verbose=0, callbacks=callbacks(), **rest | options).history
    return history, list(CALLS)


def assert_same_calls(actual, expected):
    """Compares the calls; what callbacks got up to rounding."""
    assert [c[:2] if isinstance(c, tuple) else c for c in actual] == [
        c[:2] if isinstance(c, tuple) else c for c in expected
    ]
    for ours, keras_s in zip(actual, expected, strict=True):
        if isinstance(ours, tuple) and len(ours) == 3:
            assert ours[2] == pytest.approx(keras_s[2], rel=1e-5)


def compare(build, callbacks, by_dataset, *, overlaps=True, **options):
    expected, model = build(), build()
    expected_history, expected_calls = run(expected.fit, by_dataset, callbacks, **options)
    trainer = Trainer(model, validation=ValidationPolicy(overlap="always"))
    history, calls = run(trainer.fit, by_dataset, callbacks, **options)
    assert_same_history(history, expected_history)
    assert_same_calls(calls, expected_calls)
    assert_same_weights(model, expected)
    assert overlaps is not any("in step" in text for text in trainer.messages), trainer.messages


@pytest.mark.parametrize("by_dataset", [False, True], ids=["arrays", "dataset"])
@pytest.mark.parametrize("callbacks", [list, lambda: [Halves()]], ids=["alone", "changes"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.by_default("SetsAVariable-alone-arrays")
def test_a_metric_is_read_and_set_back_when_keras_does_it(metric, callbacks, by_dataset):
    compare(lambda: network(metric), callbacks, by_dataset, overlaps=metric not in NEVER_ALIKE)


@pytest.mark.nightly
@pytest.mark.by_default("OwnResults")
@pytest.mark.parametrize("kind", [OwnResults, OwnReset])
def test_so_is_a_model_s_own_method(kind):
    compare(lambda: network(WithNote, kind), lambda: [Halves()], by_dataset=False)


@pytest.mark.nightly
@pytest.mark.by_default("CountsItsResets")
@pytest.mark.parametrize("metric", [CountsItsResets, CountsItsReads])
def test_a_stop_undoes_what_was_run_ahead(metric):
    compare(lambda: network(metric), lambda: [Stops()], by_dataset=False)


@pytest.mark.nightly
def test_epochs_without_a_validation_are_read_in_their_turn():
    compare(lambda: network(CountsItsReads), lambda: [Halves()], by_dataset=True, validation_freq=2)


@pytest.mark.nightly
def test_the_next_fit_goes_on_from_what_the_metrics_keep():
    model, expected = network(CountsItsResets), network(CountsItsResets)
    histories = []
    for fit in (Trainer(model, validation=ValidationPolicy(overlap="always")).fit, expected.fit):
        histories.append([run(fit, False, list)[0] for _ in range(2)])
    for ours, keras_s in zip(*histories, strict=True):
        assert_same_history(ours, keras_s)


@pytest.mark.by_default("InNumPy")
@pytest.mark.parametrize("metric", [WithNote, InNumPy, CountsItsReads, IsNeverSetBack])
def test_evaluate_reads_them_once(metric):
    model, expected = network(metric), network(metric)
    results = []
    for evaluate in (Trainer(model).evaluate, expected.evaluate):
        evaluate(*VALIDATION, verbose=0)  # before which Keras has no metric yet that it could set back
        CALLS.clear()
        logs = [evaluate(*VALIDATION, verbose=0, return_dict=True) for _ in range(2)]
        results.append((logs, list(CALLS)))
    for ours, keras_s in zip(results[0][0], results[1][0], strict=True):
        assert ours == pytest.approx(keras_s, rel=1e-5)
    assert results[0][1] == results[1][1]


@pytest.mark.nightly
def test_a_resumed_run_goes_on_as_an_unbroken_one(tmp_path):
    policy = ValidationPolicy(overlap="always")
    first = Trainer(network(InNumPy), validation=policy)
    arguments = dict(batch_size=16, shuffle=False, verbose=0, validation_data=VALIDATION)
    first.fit(X, Y, epochs=3, resume=tmp_path, **arguments)
    model, expected = network(InNumPy), network(InNumPy)
    history = Trainer(model, validation=policy).fit(X, Y, epochs=5, resume=tmp_path, **arguments).history
    unbroken = expected.fit(X, Y, epochs=5, **arguments).history
    assert_same_history(history, {name: values[-len(history["loss"]) :] for name, values in unbroken.items()})
    assert_same_weights(model, expected)
