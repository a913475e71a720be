"""Methods of a model or a metric that are replaced, such as `evaluate`, count as under Keras."""

import functools
from unittest import mock

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer
from tests.networks import arrays, linear, sequential
from tests.whole_fits.comparing import AHEAD, IN_STEP, AtEpoch, assert_as_keras

X, Y = arrays(48)
NEAR = arrays(24, 1)
ASKED = dict(batch_size=8, epochs=2, verbose=0, shuffle=False, validation_data=NEAR)


def fit(trained, **more):
    return trained.fit(X, Y, **ASKED | more).history


def logged(calls):
    """Return an `evaluate` around Keras's, which looks like it."""
    original = keras.Model.evaluate

    @functools.wraps(original)
    def evaluate(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        calls.append(result)
        return {**result, "loss": result["loss"] + 100.0}

    return mock.patch.object(keras.Model, "evaluate", evaluate)


@pytest.mark.nightly
def test_an_evaluate_in_the_place_of_keras_s_validates():
    def run(trained):
        calls = []
        with logged(calls):
            fit(trained)
        assert len(calls) == 2

    trainer = assert_as_keras(run, build=sequential)
    assert any("#model-evaluates" in message for message in trainer.messages)


def test_it_is_called_around_an_evaluation_too():
    calls, model = [], sequential()
    expected = model.evaluate(*NEAR, verbose=0, return_dict=True)
    with logged(calls):
        found = Trainer(model).evaluate(*NEAR, verbose=0, return_dict=True)
    assert len(calls) == 1
    assert found["loss"] == pytest.approx(expected["loss"] + 100, rel=1e-5)


def returning(change=lambda logs: logs):
    """Return a network whose class has an `evaluate` that changes what Keras's returns."""

    class Own(keras.Sequential):
        def evaluate(self, *args, **kwargs):
            return change(super().evaluate(*args, **kwargs))

    return linear(kind=Own, metrics=["accuracy"])


@pytest.mark.by_default("<lambda>1")
@pytest.mark.parametrize("change", [lambda logs: None, lambda logs: list(logs.values())])
def test_what_is_no_dict_is_the_error_of_keras(change):
    for trained in (returning(change), Trainer(returning(change))):
        with pytest.raises(AttributeError, match="has no attribute 'items'"):
            fit(trained)


def replaces_test_step(model):
    model.test_step = lambda data: {"loss": tf.constant(5.0)}
    model.make_test_function(force=True)


def replaces(owner_of, name, value):
    def act(model):
        setattr(owner_of(model), name, value)

    return act


def of_model(model):
    return model


def of_metric(model):
    return model.metrics[0]


REPLACED = {
    "test_step": replaces_test_step,
    "get_metrics_result": replaces(of_model, "get_metrics_result", lambda: {"loss": tf.constant(5.0)}),
    "reset_metrics": replaces(of_model, "reset_metrics", lambda: None),
    "evaluate": replaces(of_model, "evaluate", lambda *arguments, **named: {"loss": 5.0}),
    "result": replaces(of_metric, "result", lambda: tf.constant(5.0)),
    "reset_state": replaces(of_metric, "reset_state", lambda: None),
}


@pytest.mark.parametrize("policy", [AHEAD, IN_STEP], ids=["ahead", "in step"])
@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.by_default("result-ahead", "reset_metrics-in step", "test_step-ahead", "evaluate-in step")
def test_what_a_callback_replaces_counts_from_the_next_epoch_on(name, policy):
    """Keras looks these methods up anew in each epoch, on the object."""

    def run(trained):
        replacing = AtEpoch(lambda callback, epoch: epoch or REPLACED[name](callback.model))
        return fit(trained, epochs=3, callbacks=[replacing])

    assert_as_keras(run, policy, build=functools.partial(sequential, "sgd"))


class BeginsLater(keras.callbacks.Callback):
    """Has a hook from the end of its first epoch on."""

    def __init__(self):
        super().__init__()
        self.begun = []

    def on_epoch_end(self, epoch, logs=None):
        self.on_epoch_begin = lambda epoch, logs=None: self.begun.append(epoch)


def test_a_hook_that_a_callback_gets_while_it_trains_is_called_from_then_on():
    def run(trained):
        callback = BeginsLater()
        fit(trained, epochs=4, callbacks=[callback])
        assert callback.begun == [1, 2, 3]

    assert_as_keras(run, build=sequential)
