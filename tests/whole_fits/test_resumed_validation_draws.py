"""Validation data that draws anew for each validation, in a fit that is resumed."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, ExecutionPlan, Trainer, ValidationPolicy
from tests.killing import Killed, Kills
from tests.networks import VALIDATION_ROWS, Outcome, arrays, assert_same_outcome
from tests.pools import sequential

X, Y = arrays()
VALIDATION = arrays(VALIDATION_ROWS, 1)
# Where the size of a dataset is unknown, Keras says at its end that it ran out.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
STEPS = 13  # of an epoch of 203 rows in batches of 16
SHORT_CALLS = ExecutionPlan(steps_per_call=1, batch_splits=1, jit=False)


def rows():
    return tf.data.Dataset.from_tensor_slices(VALIDATION)


def counted(x, y, *, count):
    return x * tf.cast(1 + count.assign_add(1) % 7, x.dtype), y


def augmented():
    noise = keras.layers.GaussianNoise(0.5, seed=3)
    return {"validation_data": rows().batch(16).map(lambda x, y: (noise(x, training=True), y))}


def by_a_generator():
    generator = tf.random.Generator.from_seed(9)
    return {"validation_data": rows().map(lambda x, y: (x + generator.normal(tf.shape(x)), y)).batch(16)}


def by_a_count():
    return {"validation_data": rows().batch(16).map(functools.partial(counted, count=tf.Variable(0)))}


def some_of_a_shuffle():
    return {"validation_data": rows().shuffle(VALIDATION_ROWS, seed=3).take(40).batch(16)}


def steps_of_a_shuffle():
    return {"validation_data": rows().shuffle(VALIDATION_ROWS, seed=3).batch(16), "validation_steps": 2}


def steps_of_an_endless_shuffle():
    return {"validation_data": rows().shuffle(20, seed=3).repeat().batch(16), "validation_steps": 2}


def steps_of_two_shuffles():
    shuffled = rows().shuffle(VALIDATION_ROWS, seed=3).shuffle(9, seed=4)
    return {"validation_data": shuffled.batch(16), "validation_steps": 2}


def some_of_shuffled_files():
    numbers = tf.data.Dataset.range(7).shuffle(7, seed=3)
    files = numbers.interleave(lambda number: rows().skip(number * 13).take(13), cycle_length=2)
    return {"validation_data": files.take(40).batch(16)}


def shuffled_and_augmented():
    both = by_a_generator()["validation_data"].unbatch().shuffle(VALIDATION_ROWS, seed=3)
    return {"validation_data": both.take(40).batch(16)}


def a_cache_of_noise():
    generator = tf.random.Generator.from_seed(9)

    def noisy(x, y):
        return x + generator.normal(tf.shape(x)), y

    return {"validation_data": rows().map(noisy).cache().map(noisy).batch(16)}


def a_cache_of_a_shuffle():
    return {"validation_data": rows().shuffle(VALIDATION_ROWS, seed=3).cache().take(40).batch(16)}


def from_an_iterator():
    numbers = iter(tf.data.Dataset.range(10**6))
    return {
        "validation_data": rows().batch(16).map(lambda x, y: (x * tf.cast(1 + next(numbers) % 7, x.dtype), y))
    }


def a_captured_shuffle():
    shuffled = rows().shuffle(VALIDATION_ROWS, seed=3)
    known = tf.data.experimental.assert_cardinality(40)
    captured = tf.data.Dataset.range(1).flat_map(lambda number: shuffled).take(40).apply(known)
    return {"validation_data": captured.batch(16)}


def two_sets_of_one_shuffle():
    shuffled = rows().shuffle(VALIDATION_ROWS, seed=3)
    return {
        "validation_data": {"first": shuffled.take(40).batch(16), "rest": shuffled.skip(40).batch(16)},
        "validation_freq": 2,
    }


class Noisy(keras.utils.PyDataset):
    """Batches of 16 rows with noise of a generator of its own; counts its passes."""

    def __init__(self, seed=5):
        super().__init__()
        self.generator = np.random.default_rng(seed)
        self.passes = 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x, y = (part[16 * index : 16 * index + 16] for part in VALIDATION)
        return x + self.generator.normal(0, 1 + self.passes, x.shape).astype("float32"), y

    def on_epoch_end(self):
        self.passes += 1


def python_that_draws():
    return {"validation_data": Noisy()}


def two_sets_of_python():
    return {"validation_data": {"first": Noisy(), "rest": Noisy(6)}, "validation_freq": 2}


SOURCES = {
    each.__name__: each
    for each in (
        *(augmented, by_a_generator, by_a_count, some_of_a_shuffle, steps_of_a_shuffle),
        *(steps_of_an_endless_shuffle, steps_of_two_shuffles, some_of_shuffled_files, shuffled_and_augmented),
        *(a_cache_of_noise, a_cache_of_a_shuffle, two_sets_of_one_shuffle),
        *(from_an_iterator, a_captured_shuffle, python_that_draws, two_sets_of_python),
    )
}


def fit(source, directory, kills, *, lag=1, every=None):
    policy = ValidationPolicy(max_lag=lag, overlap="always", every_steps=every)
    trainer = Trainer(sequential(), validation=policy, execution=SHORT_CALLS)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(9, seed=2).batch(16)
    trainer.fit(data, epochs=4, callbacks=[kills], verbose=0, resume=directory, **SOURCES[source]())
    return trainer


@functools.cache
def unbroken(source, every=None):
    return Outcome.of(fit(source, None, Kills(), every=every).model)


KILLS = [{"epoch": 1}, {"epoch": 2}, {"step": STEPS + 4}, {"step": 2 * STEPS + 6}, {"step": 3 * STEPS + 9}]


@pytest.mark.nightly
@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("kills", KILLS, ids=str)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.by_default("a_captured_shuffle-{'epoch': 1}-1")
def test_a_resumed_fit_validates_on_what_the_unbroken_one_does(source, kills, lag, tmp_path):
    policy = CheckpointPolicy(tmp_path, every_steps=3 if "step" in kills else None)
    with pytest.raises(Killed):
        fit(source, policy, Kills(**kills), lag=lag)
    trainer = fit(source, policy, Kills(), lag=lag)
    assert any(message.startswith("resumed") for message in trainer.messages)
    assert_same_outcome(trainer.model, unbroken(source))


@pytest.mark.nightly
@pytest.mark.by_default("by_a_count")
@pytest.mark.parametrize("source", ["some_of_a_shuffle", "a_cache_of_noise", "by_a_count"])
def test_a_fit_that_is_resumed_twice_validates_so_too(source, tmp_path):
    for epoch in (0, 2):
        with pytest.raises(Killed):
            fit(source, tmp_path, Kills(epoch=epoch))
    assert_same_outcome(fit(source, tmp_path, Kills()).model, unbroken(source))


def test_it_is_told_if_batches_are_drawn_again(tmp_path):
    with pytest.raises(Killed):
        fit("steps_of_two_shuffles", tmp_path, Kills(epoch=2))
    trainer = fit("steps_of_two_shuffles", tmp_path, Kills())
    assert any("the batches of 2 validations are drawn again" in message for message in trainer.messages)


def test_it_is_told_that_a_generator_begins_anew(tmp_path):
    def endless():
        while True:
            yield from rows().batch(16)

    trainer = Trainer(sequential())
    trainer.fit(X, Y, epochs=1, validation_data=endless(), validation_steps=2, verbose=0, resume=tmp_path)
    assert any("begins the generator that it validates on anew" in message for message in trainer.messages)


@pytest.mark.nightly
@pytest.mark.by_default("{'step': 20}")
@pytest.mark.parametrize("kills", [{"epoch": 1}, {"step": STEPS + 7}], ids=str)
def test_validations_inside_epochs_draw_on_too(kills, tmp_path):
    policy = CheckpointPolicy(tmp_path, every_steps=3 if "step" in kills else None)
    with pytest.raises(Killed):
        fit("by_a_generator", policy, Kills(**kills), every=5)
    trainer = fit("by_a_generator", policy, Kills(), every=5)
    assert_same_outcome(trainer.model, unbroken("by_a_generator", every=5))


@pytest.mark.nightly
def test_what_a_callback_has_set_on_the_pipeline_of_a_validation_goes_on(tmp_path):
    def fit(epochs, directory):
        scale = tf.Variable(1.0)

        class Scales(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                scale.assign(scale * 1.5)

        trainer = Trainer(sequential(), execution=SHORT_CALLS)
        scaled = rows().batch(16).map(lambda x, y: (x * scale, y))
        callbacks = [Scales()]
        trainer.fit(
            X, Y, epochs=epochs, validation_data=scaled, callbacks=callbacks, verbose=0, resume=directory
        )
        return trainer.model

    fit(2, tmp_path)
    assert_same_outcome(fit(4, tmp_path), Outcome.of(fit(4, None)))
