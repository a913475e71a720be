"""A pipeline writes to a variable that its validation or a callback writes to as well, in Keras's order."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, ExecutionPlan, Trainer, ValidationPolicy
from tests.killing import Killed, Kills
from tests.networks import VALIDATION_ROWS, Outcome, arrays, assert_same_history, assert_same_outcome
from tests.pools import sequential

X, Y = arrays()
VALIDATION = arrays(VALIDATION_ROWS, 1)
STEPS = 13  # of an epoch of 203 rows in batches of 16
AHEAD = ValidationPolicy(max_lag=2, overlap="always")
SHORT_CALLS = ExecutionPlan(steps_per_call=1, batch_splits=1, jit=False)


class Failed(RuntimeError):
    """What a callback raises."""


class Acts(keras.callbacks.Callback):
    """Does something at the ends of epochs, and remembers nothing."""

    def __init__(self, act):
        super().__init__()
        self._act = act

    def get_state(self):
        return {}

    def set_state(self, state):
        pass

    def on_epoch_end(self, epoch, logs=None):
        self._act(epoch)


def held():
    return tf.data.Dataset.from_tensor_slices(VALIDATION).batch(16)


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)


def noisy(generator):
    return lambda x, y: (x + generator.normal(tf.shape(x)), y)


def counted(count):
    return lambda x, y: (x * tf.cast(1 + count.assign_add(1) % 7, x.dtype), y)


def reset_by_a_callback():
    count = tf.Variable(0)
    return rows().map(counted(count)), VALIDATION, lambda epoch: count.assign(0), count


def a_generator_of_both():
    generator = tf.random.Generator.from_seed(5)
    draws = noisy(generator)
    return rows().shuffle(9, seed=2).map(draws), held().map(draws), lambda epoch: None, generator.state


def a_generator_of_all_three():
    generator = tf.random.Generator.from_seed(5)
    draws = noisy(generator)
    return (
        rows().map(draws).prefetch(3),
        held().map(draws),
        lambda epoch: generator.normal([2]),
        generator.state,
    )


def a_layer_of_both():
    noise = keras.layers.GaussianNoise(0.5, seed=3)

    def draws(x, y):
        return noise(x, training=True), y

    return rows().map(draws), held().map(draws), lambda epoch: None, noise.seed_generator.state.value


def a_count_that_the_validation_reads():
    count = tf.Variable(0)
    read = held().map(lambda x, y: (x * tf.cast(1 + count % 5, x.dtype), y))
    return rows().map(counted(count)), read, lambda epoch: None, count


SOURCES = {
    each.__name__: each
    for each in (
        *(reset_by_a_callback, a_generator_of_both, a_generator_of_all_three, a_layer_of_both),
        a_count_that_the_validation_reads,
    )
}


def raising(act, at):
    def raised(epoch):
        act(epoch)
        if epoch == at:
            raise Failed

    return Acts(raised)


@pytest.mark.nightly
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.by_default("a_generator_of_both")
def test_a_callback_that_raises_leaves_what_was_written_as_under_keras(source):
    found = []
    for ours in (False, True):
        model = sequential()
        fit = Trainer(model, validation=AHEAD, execution=SHORT_CALLS).fit if ours else model.fit
        data, validation, act, variable = SOURCES[source]()
        with pytest.raises(Failed):
            fit(data, epochs=4, validation_data=validation, callbacks=[raising(act, 1)], verbose=0)
        left = np.array(variable)
        fit(data, epochs=2, validation_data=validation, verbose=0)
        found.append((left, Outcome.of(model)))
    (expected, then), (actual, ours_then) = found
    np.testing.assert_array_equal(actual, expected)
    assert_same_history(ours_then.history, then.history)


def test_a_validation_that_raises_leaves_what_was_written_as_under_keras():
    found = []
    for ours in (False, True):
        model = sequential()
        fit = Trainer(model, validation=AHEAD).fit if ours else model.fit
        generator, count = tf.random.Generator.from_seed(5), tf.Variable(0)

        def fails_once(x, y, generator=generator, count=count):
            with tf.control_dependencies([tf.debugging.assert_none_equal(count.assign_add(1), 8)]):
                return x + generator.normal(tf.shape(x)), y

        alone = tf.data.Options()
        alone.experimental_optimization.inject_prefetch = False
        data, validation = rows().map(noisy(generator)), held().map(fails_once).with_options(alone)
        with pytest.raises(tf.errors.InvalidArgumentError):
            fit(data, epochs=3, validation_data=validation, verbose=0)
        left = np.array(generator.state)
        fit(data, epochs=2, validation_data=validation, verbose=0)
        found.append((left, Outcome.of(model)))
    (expected, then), (actual, ours_then) = found
    np.testing.assert_array_equal(actual, expected)
    assert_same_history(ours_then.history, then.history)


def resumable(source, directory, kills, **more):
    trainer = Trainer(sequential(), validation=AHEAD, execution=SHORT_CALLS)
    data, validation, act, _ = SOURCES[source]()
    callbacks = [Acts(act), kills]
    trainer.fit(
        data, epochs=4, validation_data=validation, callbacks=callbacks, verbose=0, resume=directory, **more
    )
    return trainer


@functools.cache
def unbroken(source, **more):
    return Outcome.of(resumable(source, None, Kills(), **more).model)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kills", [{"epoch": 1}, {"epoch": 2}, {"step": STEPS + 3}, {"step": 2 * STEPS + 4}], ids=str
)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.by_default("reset_by_a_callback-{'epoch': 2}")
def test_what_was_written_in_turn_is_so_after_a_resume(source, kills, tmp_path):
    policy = CheckpointPolicy(tmp_path, every_steps=2 if "step" in kills else None)
    with pytest.raises(Killed):
        resumable(source, policy, Kills(**kills))
    trainer = resumable(source, policy, Kills())
    where = "resumed inside" if "step" in kills else "resumed after"
    assert any(message.startswith(where) for message in trainer.messages)
    assert_same_outcome(trainer.model, unbroken(source))
