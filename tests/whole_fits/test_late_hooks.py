"""What hooks are called with, in which order, and what they set is as in Keras, in a training ahead too."""

import functools

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, assert_alike, linear
from tests.pools import pooled, sequential
from tests.whole_fits.comparing import (
    AHEAD,
    IN_STEP,
    Rows,
    assert_as_keras,
    assert_returns_as_keras,
    halves,
    waits,
)

X, Y = arrays(70)
VALIDATION = arrays(33, 1)
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


def noting(*hooks):
    """Return a callback that notes the arguments of some hooks."""

    def note(hook, self, *arguments, logs=None):
        *number, logs = arguments if logs is None else (*arguments, logs)
        self.calls.append((hook, number, type(logs), dict(logs)))

    methods = {hook: functools.partialmethod(functools.partial(note, hook)) for hook in hooks}
    notes = type("Notes", (keras.callbacks.Callback,), methods)()
    notes.calls = []
    return notes


def looking(*hooks):
    """Return a callback that notes, besides, the steps and the weights of the model that it sees."""

    def look(self, hook):
        weights = float(sum(np.abs(weight).sum() for weight in self.model.get_weights()))
        self.calls.append((hook, int(self.model.optimizer.iterations), weights))

    looks = noting(*hooks)
    for hook in hooks:
        note = getattr(looks, hook)
        setattr(looks, hook, lambda *a, hook=hook, note=note, **k: (note(*a, **k), look(looks, hook)))
    return looks


def notes_of(trained, hooks=HOOKS, make=noting, **more):
    """Return what some hooks of a fit are given, and what they see."""
    notes = make(*hooks)
    trained.fit(X, Y, callbacks=[notes], **(ARGUMENTS | more))
    assert {call[0] for call in notes.calls} == set(hooks)
    return notes.calls


OF_EPOCHS = ["on_train_begin", "on_epoch_end", "on_test_begin", "on_test_end", "on_train_end"]
SOME = {
    "all": HOOKS,
    "training": TRAINING,
    "batches": ["on_batch_begin", "on_batch_end"],
    "epochs": OF_EPOCHS,
    "validation batches": [*OF_EPOCHS, *HOOKS[-2:]],
}


@pytest.mark.parametrize("make", [noting, looking])
@pytest.mark.parametrize("hooks", SOME.values(), ids=SOME)
@pytest.mark.by_default("all-looking")
def test_every_hook_of_a_fit_is_given_and_sees_what_keras_gives(hooks, make):
    rtol = 1e-6 if make is looking else 1e-5
    assert_as_keras(functools.partial(notes_of, hooks=hooks, make=make), IN_STEP, AHEAD, rtol=rtol)


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("group", [1, 2, 4, 50])
@pytest.mark.by_default("4-True")
def test_so_it_is_in_groups_of_steps(group, run_eagerly):
    """One step a call, several, more than an epoch has, and eager ones."""
    build = functools.partial(linear, steps_per_execution=group, run_eagerly=run_eagerly)
    assert_as_keras(functools.partial(notes_of, epochs=2, validation_batch_size=8), build=build)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*ran out")
@pytest.mark.parametrize(("group", "steps", "validation_steps"), [(1, 3, 2), (2, 3, 3), (4, 2, 2), (3, 7, 9)])
@pytest.mark.by_default("2-3-3")
def test_an_epoch_has_whole_groups_of_steps(group, steps, validation_steps):
    more = dict(epochs=3, steps_per_epoch=steps, validation_steps=validation_steps, validation_batch_size=8)
    build = functools.partial(linear, steps_per_execution=group)
    assert_as_keras(functools.partial(notes_of, **more), build=build)


@pytest.mark.parametrize("where", ["on_train_begin", "on_epoch_begin"])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.by_default("1-on_train_begin")
def test_a_training_told_to_stop_before_a_step_makes_one_call(where, group):
    def run(trained):
        stop = keras.callbacks.Callback()
        setattr(stop, where, lambda *args, **kwargs: setattr(stop.model, "stop_training", True))
        trained.fit(X, Y, callbacks=[stop], **ARGUMENTS)

    trainer = assert_as_keras(run, build=functools.partial(linear, steps_per_execution=group))
    assert int(trainer.model.optimizer.iterations) == group


class Scaled(keras.layers.Layer):
    scale = 0.0

    def call(self, x):
        return x * self.scale


class SetsScale(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.layers[0].scale = 2.0

    def on_train_batch_begin(self, batch, logs=None):
        self.model.layers[0].scale = 3.0


def test_what_a_callback_sets_in_its_first_hooks_is_in_the_trace():
    def run(trained):
        trained.fit(X, Y, callbacks=[SetsScale()], **ARGUMENTS)

    assert_as_keras(run, build=functools.partial(linear, Scaled))


grouped = functools.partial(linear, steps_per_execution=2)


@pytest.mark.parametrize("build", [sequential, pooled(grouped)], ids=["steps", "groups"])
def test_every_hook_of_an_evaluate_is_given_what_keras_gives(build):
    def run(trained):
        notes = noting(*HOOKS)
        trained.evaluate(X[:40], Y[:40], batch_size=10, verbose=0, callbacks=[notes])
        assert notes.calls
        return notes.calls

    assert_returns_as_keras(run, build)
