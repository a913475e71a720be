"""What hooks are called with, and in which order, is that of Keras, while the training runs ahead too."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, assert_alike
from tests.pools import pooled, sequential
from tests.whole_fits.comparing import (
    AHEAD,
    IN_STEP,
    VALIDATION,
    Rows,
    assert_as_keras,
    halves,
    in_turn,
    waits,
)

X, Y = arrays(64)
ARGUMENTS = dict(batch_size=16, epochs=6, verbose=0, shuffle=False, validation_data=VALIDATION)


class Keeps(keras.callbacks.Callback):
    """Keeps every call of its hooks."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(("begin", epoch, {}))

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("batch", batch, {}))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("batch end", batch, dict(logs)))

    def on_test_batch_end(self, batch, logs=None):
        self.calls.append(("test", batch, dict(logs)))

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("end", epoch, dict(logs)))


def stops():
    return keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=2)


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("others", [(), (lambda: halves(1, 3),), (stops,)], ids=["alone", "change", "stop"])
@pytest.mark.by_default("change-1")
def test_the_calls_of_what_only_keeps_them_are_those_of_keras(lag, others):
    def run(trained):
        keeps = Keeps()
        trained.fit(X, Y, callbacks=[keeps, *(make() for make in others)], **ARGUMENTS)
        return keeps.calls

    trainer = assert_as_keras(run, ValidationPolicy(max_lag=lag, overlap="always"))
    callbacks = [Keeps(), *(make() for make in others)]
    assert trainer.explain(X, Y, callbacks=callbacks, **ARGUMENTS).max_lag == lag


@pytest.mark.nightly
def test_a_checkpoint_holds_what_the_callback_had_seen_at_its_epoch_s_end(tmp_path):
    keeps, expected = Keeps(), Keeps()
    for callback, epochs in ((Keeps(), 3), (keeps, 6)):
        given = ARGUMENTS | {"epochs": epochs, "callbacks": [callback], "resume": tmp_path}
        Trainer(sequential(), validation=AHEAD).fit(X, Y, **given)
    sequential().fit(X, Y, callbacks=[expected], **ARGUMENTS)
    assert_alike(keeps.calls, expected.calls)


class Level(keras.callbacks.Callback):
    """Sets as an epoch begins what its data follow from, as in a curriculum."""

    level = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.level = epoch


class Shuffled(Rows):
    """Is shuffled at epochs' ends by NumPy's global generator."""

    def on_epoch_end(self):
        order = np.random.permutation(len(self.x))
        self.x, self.y = self.x[order], self.y[order]


class AtLevel(Rows):
    """Is scaled by what a callback says."""

    level = None

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x * self.level.level, y


@pytest.mark.nightly
@pytest.mark.parametrize("make", [Level, None])
def test_data_of_python_takes_turns_with_hooks_and_with_other_data(make):
    def run(trained):
        keras.utils.set_random_seed(3)
        rows, validation = Shuffled(X, Y, 16), Shuffled(*VALIDATION, 16)
        if make:
            rows, validation = AtLevel(X, Y, 16), VALIDATION
            rows.level = make()
        callbacks = [rows.level] if make else []
        trained.fit(rows, validation_data=validation, epochs=4, verbose=0, callbacks=callbacks)

    trainer = assert_as_keras(run)
    assert make is not None or not waits(trainer)


PHASES = [f"{what}_{when}" for what in ("train", "test", "epoch") for when in ("begin", "end")]
BATCHES = [f"{what}_batch_{when}" for what in ("train", "test") for when in ("begin", "end")]
HOOKS = [f"on_{name}" for name in (*PHASES, *BATCHES)]
TRAINING = ["on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"]


def noting(*hooks, add=False):
    """Return a callback that notes the arguments of some hooks, and perhaps adds to their logs."""

    def note(hook, self, *arguments, logs=None):
        *number, logs = arguments if logs is None else (*arguments, logs)
        self.calls.append((hook, number, type(logs), dict(logs)))
        if add:
            logs["added"] = 1.0

    methods = {hook: functools.partialmethod(functools.partial(note, hook)) for hook in hooks}
    notes = type("Notes", (keras.callbacks.Callback,), methods)()
    notes.calls = []
    return notes


@pytest.mark.nightly
@pytest.mark.parametrize(
    "hooks", [HOOKS, TRAINING, ["on_batch_begin", "on_batch_end"]], ids=["all", "training", "batches"]
)
def test_every_hook_of_a_fit_is_given_what_keras_gives(hooks):
    def run(trained):
        notes = noting(*hooks)
        trained.fit(X, Y, callbacks=[notes], **ARGUMENTS)
        assert {call[0] for call in notes.calls} == set(hooks)
        return notes.calls

    assert_as_keras(run, IN_STEP, AHEAD)


@pytest.mark.nightly
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"])
def test_what_one_callback_adds_to_the_logs_the_next_one_sees(hook):
    def run(trained):
        notes = noting(hook)
        trained.fit(X, Y, callbacks=[noting(hook, add=True), notes], **ARGUMENTS)
        assert all("added" in logs for *_, logs in notes.calls)
        return notes.calls

    assert_as_keras(run, IN_STEP, AHEAD)


def grouped():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, steps_per_execution=2)
    return model


@pytest.mark.parametrize("build", [sequential, pooled(grouped)], ids=["steps", "groups"])
def test_every_hook_of_an_evaluate_is_given_what_keras_gives(build):
    def run(trained):
        notes = noting(*HOOKS)
        trained.evaluate(X[:40], Y[:40], batch_size=10, verbose=0, callbacks=[notes])
        assert notes.calls
        return notes.calls

    expected, actual, _ = in_turn(run, build)
    assert_alike(actual, expected)
