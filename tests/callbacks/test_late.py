"""Hooks inside an epoch are called late, in the order of Keras, while the training runs ahead."""

from __future__ import annotations

import keras

from overlap_train._callbacks.late import LateHooks
from overlap_train._snapshot import ModelState

kc = keras.callbacks


class Scene:
    """Hooks of callbacks, while an epoch waits for its validation."""

    def __init__(self, *callbacks):
        keras.utils.set_random_seed(1)
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        self.model.compile(keras.optimizers.SGD(0.5), "mse")
        listed = kc.CallbackList(list(callbacks), model=self.model)
        self.state = ModelState(self.model)
        self.hooks = LateHooks(self.model, listed, self.state, lambda: True, late=True)

    @property
    def rate(self):
        return float(self.model.optimizer.learning_rate)


def test_a_schedule_sets_its_rate_in_time_and_prints_it_in_its_turn(capsys):
    seen = []

    class Looks(kc.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append(float(self.model.optimizer.learning_rate))

    scene = Scene(kc.LearningRateScheduler(lambda epoch, rate: rate / 2, verbose=1), Looks())
    snapshot = scene.state.read()
    scene.hooks.epoch_begin(1)
    assert scene.rate == 0.25
    assert capsys.readouterr().out == ""
    trained = scene.state.read()
    scene.state.restore(snapshot)
    expected = scene.hooks.begin_late(trained).rates
    assert seen == [scene.rate] == [0.25]
    assert "setting learning rate to 0.25" in capsys.readouterr().out
    expected = scene.state.with_values(snapshot, expected)
    assert scene.state.differing(expected, scene.state.read()) == []


def test_a_rate_with_which_the_epoch_was_not_trained_is_a_difference():
    scene = Scene(kc.LearningRateScheduler(lambda epoch, rate: rate / 2))
    snapshot = scene.state.read()
    scene.hooks.epoch_begin(1)
    trained = scene.state.read()
    scene.state.restore(snapshot)
    scene.model.optimizer.learning_rate = 0.3  # by an on_epoch_end
    expected = scene.state.with_values(snapshot, scene.hooks.begin_late(trained).rates)
    (changed,) = scene.state.differing(expected, scene.state.read())
    assert scene.state.variables[changed].name.endswith("learning_rate")


def test_metrics_that_are_set_as_an_epoch_begins_are_named():
    class Evaluates(kc.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.metrics[0].update_state(3.0)

    scene = Scene(Evaluates())
    scene.model.metrics[0].update_state(1.0)  # of the epoch before
    scene.hooks.epoch_begin(1)
    begun = scene.hooks.begin_late(scene.state.read())
    assert begun.reason == f"a callback set {scene.state.metrics[0].name}"
    assert float(scene.model.metrics[0].result()) == 3.0
