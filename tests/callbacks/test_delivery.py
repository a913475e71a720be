"""Contracts C4 and C5: callbacks see the model as it was, and what they change leads back to it."""

import keras
import pytest
import tensorflow as tf

from overlap_train._callbacks.delivery import Delivery
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train.records import ValidationResult

CALLBACK, HISTORY = keras.callbacks.Callback, keras.callbacks.History


class Act(CALLBACK):
    """Does something at the end of an epoch and writes down what it saw."""

    def __init__(self, act=lambda model: None):
        super().__init__()
        self.act, self.seen = act, []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, float(self.model.layers[0].kernel[0, 0]), dict(logs)))
        self.act(self.model)


class Suite:
    """Validates nothing live."""

    def live_sets(self, epoch):
        return []


class Scene:
    """A model whose weight a snapshot has at 1.0, trained on to 2.0 or not, and what delivers its epoch."""

    def __init__(self, *callbacks, trained_on=True, **options):
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        self.model.compile(keras.optimizers.SGD(0.5), "mse")
        self.model.optimizer.build(self.model.trainable_variables)
        self.model.make_train_function()
        self.model.stop_training = False
        self.kernel, self.trained_on = self.model.layers[0].kernel, trained_on
        self.callbacks = keras.callbacks.CallbackList(list(callbacks), model=self.model)
        for callback in callbacks:
            callback.on_train_begin()
        self.state = ModelState(self.model)
        self.kernel.assign([[1.0]])
        self.snapshot = Snapshot(3, 10, self.state.read())
        if trained_on:
            self.kernel.assign([[2.0]])
        parts = self.model, self.state, self.callbacks
        self.delivery = Delivery(*parts, on_change="rollback", suite=Suite(), **options)

    def deliver(self, loss=0.25, **more):
        results = {"": ValidationResult({"loss": loss}, **more)}
        options = {"stops": False, "trained_on": self.trained_on}
        return self.delivery.deliver(self.snapshot, {"loss": 0.5}, results, **options)

    @property
    def weight(self):
        return float(self.kernel[0, 0])

    @property
    def metrics(self):
        return {float(value) for value in self.state.read_metrics()}

    def metrics_of(self, value):
        return tuple(tf.fill(v.shape, tf.cast(value, v.dtype)) for v in self.state.metrics)


def test_values_stay_where_they_are_if_nobody_looks(monkeypatch):
    for name in ("restore", "changed"):
        monkeypatch.setattr(ModelState, name, lambda *_: pytest.fail("the values were moved or compared"))
    scene = Scene(history := HISTORY())
    outcome = scene.deliver()
    assert scene.weight == 2.0
    assert outcome.logs == {"loss": 0.5, "val_loss": 0.25}
    assert (outcome.stop, outcome.reason, outcome.rolled_back) == (False, None, False)
    assert float(outcome.values.trainable[0][0, 0]) == 1.0
    assert history.history == {"loss": [0.5], "val_loss": [0.25]}


def test_a_callback_that_comes_later_sees_the_snapshot():
    scene, late = Scene(), Act()
    scene.callbacks.callbacks.append(late)
    late.set_model(scene.model)
    scene.deliver()
    assert late.seen == [(3, 1.0, {"loss": 0.5, "val_loss": 0.25})]


@pytest.mark.parametrize("callback", [HISTORY(), Act()], ids=["unseen", "looked at"])
def test_the_metrics_keep_what_the_last_validation_left_in_them_if_no_step_has_come_since(callback):
    """As under Keras, where a callback or a checkpoint at the end of the training reads them."""
    scene = Scene(callback, trained_on=False)
    outcome = scene.deliver(metric_state=scene.metrics_of(3))
    assert scene.metrics == {3.0}
    assert outcome.reason is None


def test_a_metric_that_is_a_variable_shows_the_validations_value_in_the_training_logs():
    """Keras turns an epoch's logs into numbers after its validation."""
    scene = Scene(act := Act(), live_metrics=lambda: frozenset(["loss"]), trained_on=False)
    scene.deliver(7.0)
    assert act.seen[0][2] == {"loss": 7.0, "val_loss": 7.0}


def test_a_callback_that_raises_leaves_the_weights_of_its_epoch():
    def fail(model):
        raise RuntimeError("no space left")

    scene = Scene(Act(fail))
    with pytest.raises(RuntimeError, match="no space left"):
        scene.deliver()
    assert scene.weight == 1.0
