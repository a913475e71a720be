"""What surrounds the traced validation step follows the metrics that the model has, as in Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._inspection.traces import Traces
from tests.networks import arrays, assert_same_history, sequential

X, Y = arrays(64)
VALIDATION = arrays(40, 1)


def calls_of(how, model):
    """Returns `fit` and `evaluate` of Keras, or of a trainer."""
    if how == "keras":
        return model.fit, model.evaluate
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=0 if how == "in step" else 1, workers=2))
    return trainer.fit, trainer.evaluate


def attach(model):
    model.extra = keras.metrics.Mean(name="extra")
    model.extra.update_state(5.0)


def seen(model, values):
    return [float(value) for value in values], float(model.extra.result()), [m.name for m in model.metrics]


class OwnLoss(keras.Sequential):
    """Its test step returns the loss of the batch under the name of the metric."""

    def test_step(self, data):
        x, y = data
        loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=False), training=False)
        self._loss_tracker.update_state(loss)
        return {"loss": loss}


def own_step():
    keras.utils.set_random_seed(1)
    model = OwnLoss([keras.Input((X.shape[1],)), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("build", [sequential, own_step])
@pytest.mark.by_default("own_step")
def test_a_metric_attached_after_an_evaluate_is_set_back_by_the_next(build):
    def run(how):
        model = build()
        _, evaluate = calls_of(how, model)
        first = evaluate(*VALIDATION, verbose=0, return_dict=True)
        attach(model)
        second = evaluate(*VALIDATION, verbose=0, return_dict=True)
        assert sorted(first) == sorted(second)
        return seen(model, [*first.values(), *second.values()])

    expected, found = run("keras"), run("ahead")
    assert expected[1] == 0.0
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert found[1:] == expected[1:]


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["in step", "ahead"])
@pytest.mark.by_default("ahead")
def test_a_metric_attached_after_a_fit_is_set_back_by_the_next(how):
    def run(how):
        model = own_step()
        fit, _ = calls_of(how, model)
        arguments = dict(verbose=0, validation_data=VALIDATION, shuffle=False)
        fit(X, Y, epochs=1, **arguments)
        attach(model)
        fit(X, Y, epochs=2, **arguments)
        return model

    expected, model = run("keras"), run(how)
    assert_same_history(model.history.history, expected.history.history)
    assert float(model.extra.result()) == float(expected.extra.result()) == 0.0


class Attaches(keras.callbacks.Callback):
    """Adds a metric in the second epoch, and counts batches in it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            attach(self.model)

    def on_train_batch_end(self, batch, logs=None):
        if hasattr(self.model, "extra"):
            self.model.extra.update_state(batch + 1.0)

    def on_epoch_end(self, epoch, logs=None):
        if hasattr(self.model, "extra"):
            self.seen.append(float(self.model.extra.result()))


class Listens(Attaches):
    def on_test_begin(self, logs=None):
        if hasattr(self.model, "extra"):
            self.seen.append(float(self.model.extra.result()))


@pytest.mark.parametrize("kind", [Attaches, Listens])
@pytest.mark.by_default("Attaches")
def test_a_metric_that_a_callback_attaches_is_set_back_by_each_validation(kind):
    def run(how):
        model, callback = own_step(), kind()
        fit, _ = calls_of(how, model)
        fit(X, Y, epochs=3, verbose=0, validation_data=VALIDATION, callbacks=[callback])
        return callback.seen

    expected = run("keras")
    assert 0.0 in expected
    assert run("ahead") == expected


def test_what_is_made_for_the_present_metrics_is_kept():
    model = own_step()
    trainer = Trainer(model)
    trainer.evaluate(*VALIDATION, verbose=0)
    attach(model)
    trainer.evaluate(*VALIDATION, verbose=0)
    kept = dict(Traces.of(model)._kept["test"])
    trainer.evaluate(*VALIDATION, verbose=0)
    assert Traces.of(model)._kept["test"] == kept
