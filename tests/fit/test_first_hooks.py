"""Hooks are called where Keras calls them, and what they change is in the step's trace."""

from __future__ import annotations

import warnings

import keras
import pytest

from overlap_train import Trainer
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, crossentropy
from tests.pools import pooled

kc = keras.callbacks
X, Y = arrays(70)
VALIDATION = arrays(33, 1)


@pooled
def plain(*layers, **arguments):
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), **arguments)
    return model


class Told(kc.Callback):
    """Notes every hook that is called, with the number of the epoch or batch."""

    def __init__(self):
        super().__init__()
        self.hooks = []

    def __getattribute__(self, name):
        if name.startswith("on_") and name not in ("on_batch_begin", "on_batch_end"):
            hooks = object.__getattribute__(self, "hooks")
            return lambda *args, **kwargs: hooks.append((name, *[a for a in args if isinstance(a, int)]))
        return object.__getattribute__(self, name)

    def on_train_batch_end(self, batch, logs=None):
        """Overridden, so that it counts as listening."""

    def on_test_batch_end(self, batch, logs=None):
        """Overridden likewise."""


def hooks_of(fit, **arguments):
    told = Told()
    fit(X, Y, batch_size=16, callbacks=[told], verbose=0, validation_data=VALIDATION, **arguments)
    return told.hooks


GROUPS = [(1, False), (4, False), (50, False), (4, True)]
MORE_GROUPS = [(2, False), (1, True), (2, True), (50, True)]


@pytest.mark.parametrize(
    ("group", "run_eagerly"),
    [*GROUPS, *(pytest.param(*case, marks=pytest.mark.nightly) for case in MORE_GROUPS)],
)
# Groups of one step are most of the other tests; one larger than the epoch is in the next.
@pytest.mark.by_default("4-True")
def test_every_hook_is_called_where_keras_calls_it(group, run_eagerly):
    """One step a call, several, more than an epoch has, and eager ones; the rest is nightly."""
    build = dict(steps_per_execution=group, run_eagerly=run_eagerly)
    asked = dict(epochs=2, validation_batch_size=8)
    assert hooks_of(Trainer(plain(**build)).fit, **asked) == hooks_of(plain(**build).fit, **asked)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*ran out")
@pytest.mark.parametrize(("group", "steps", "validation_steps"), [(1, 3, 2), (2, 3, 3), (4, 2, 2), (3, 7, 9)])
@pytest.mark.by_default("2-3-3")
def test_an_epoch_has_whole_groups_of_steps(group, steps, validation_steps):
    asked = dict(epochs=3, steps_per_epoch=steps, validation_steps=validation_steps, validation_batch_size=8)
    models = [plain(steps_per_execution=group) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = hooks_of(models[0].fit, **asked)
    assert hooks_of(Trainer(models[1]).fit, **asked) == expected
    assert int(models[0].optimizer.iterations) == int(models[1].optimizer.iterations)
    assert_same_history(models[1].history.history, models[0].history.history)


@pytest.mark.parametrize("where", ["on_train_begin", "on_epoch_begin"])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.by_default("1-on_train_begin")
def test_a_training_told_to_stop_before_a_step_makes_one_call(where, group):
    def run(model, fit):
        stop = kc.Callback()
        setattr(stop, where, lambda *args, **kwargs: setattr(model, "stop_training", True))
        fit(X, Y, batch_size=16, epochs=3, verbose=0, validation_data=VALIDATION, callbacks=[stop])
        return model

    expected, model = plain(steps_per_execution=group), plain(steps_per_execution=group)
    run(expected, expected.fit)
    run(model, Trainer(model).fit)
    assert int(model.optimizer.iterations) == int(expected.optimizer.iterations) == group
    assert_same_history(model.history.history, expected.history.history)


def test_what_a_callback_sets_in_its_first_hooks_is_in_the_trace():
    class Staged(keras.Model):
        def __init__(self):
            super().__init__()
            self.head, self.scale = keras.layers.Dense(CLASSES), 0.0

        def call(self, x):
            return self.head(x) * self.scale

    class Set(kc.Callback):
        def on_train_begin(self, logs=None):
            self.model.scale = 2.0

        def on_train_batch_begin(self, batch, logs=None):
            self.model.scale = 3.0

    def build():
        keras.utils.set_random_seed(4)
        model = Staged()
        model.compile("sgd", crossentropy())
        return model

    expected, model = build(), build()
    expected.fit(X, Y, epochs=2, verbose=0, shuffle=False, callbacks=[Set()])
    Trainer(model).fit(X, Y, epochs=2, verbose=0, shuffle=False, callbacks=[Set()])
    assert_same_history(model.history.history, expected.history.history)
