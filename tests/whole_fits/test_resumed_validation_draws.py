"""Validation data that draws anew for each validation, in a fit that is resumed."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from tests.killing import Killed, Kills
from tests.networks import VALIDATION_ROWS, Outcome, assert_same_outcome
from tests.pools import sequential
from tests.whole_fits.comparing import (
    SHORT_CALLS,
    VALIDATION,
    X,
    Y,
    counted,
    killed_and_resumed,
    layered,
    noisy,
    slices,
)

# Where the size of a dataset is unknown, Keras says at its end that it ran out.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
STEPS = 13  # of an epoch of 203 rows in batches of 16
Dataset = tf.data.Dataset


def rows():
    return slices(*VALIDATION)


def shuffled():
    return rows().shuffle(VALIDATION_ROWS, seed=3)


def drawn():
    return noisy(tf.random.Generator.from_seed(9))


def two_sets_of_one_shuffle():
    both = shuffled()
    return {"first": both.take(40).batch(16), "rest": both.skip(40).batch(16)}


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


# What makes the validation data, and other arguments of `fit`.
SOURCES = {
    "layers": (lambda: rows().batch(16).map(layered()), {}),
    "a generator": (lambda: rows().map(drawn()).batch(16), {}),
    "a count": (lambda: rows().batch(16).map(counted(tf.Variable(0))), {}),
    "some of a shuffle": (lambda: shuffled().take(40).batch(16), {}),
    "steps of a shuffle": (lambda: shuffled().batch(16), {"validation_steps": 2}),
    "shuffled and augmented": (
        lambda: rows().map(drawn()).shuffle(VALIDATION_ROWS, seed=3).take(40).batch(16),
        {},
    ),
    "two sets of one shuffle": (two_sets_of_one_shuffle, {"validation_freq": 2}),
    "python": (Noisy, {}),
    "two sets of python": (lambda: {"first": Noisy(), "rest": Noisy(6)}, {"validation_freq": 2}),
}


def fit(source, directory, kills, *, lag=1, every=None):
    policy = ValidationPolicy(max_lag=lag, overlap="always", every_steps=every)
    trainer = Trainer(sequential(), validation=policy, execution=SHORT_CALLS)
    make, more = SOURCES[source]
    given = {"validation_data": make(), "callbacks": [kills], "resume": directory, **more}
    trainer.fit(slices().shuffle(9, seed=2).batch(16), epochs=4, verbose=0, **given)
    return trainer


@functools.cache
def unbroken(source, every=None):
    return Outcome.of(fit(source, None, Kills(), every=every).model)


KILLS = [{"epoch": 1}, {"epoch": 2}, {"step": STEPS + 4}, {"step": 2 * STEPS + 6}, {"step": 3 * STEPS + 9}]


def cases():
    yield from ((source, kill, lag, None) for source in SOURCES for kill in KILLS for lag in (1, 2))
    yield from (("a generator", kill, 1, 5) for kill in KILLS[:3])  # with validations inside epochs


@pytest.mark.parametrize(("source", "kill", "lag", "every"), list(cases()), ids=str)
@pytest.mark.by_default("python-{'epoch': 2}-1-None")
def test_a_resumed_fit_validates_on_what_the_unbroken_one_does(source, kill, lag, every, tmp_path):
    policy = CheckpointPolicy(tmp_path, every_steps=3 if "step" in kill else None)
    trainer = killed_and_resumed(lambda kills: fit(source, policy, kills, lag=lag, every=every), **kill)
    assert_same_outcome(trainer.model, unbroken(source, every))


@pytest.mark.nightly
@pytest.mark.parametrize("source", ["some of a shuffle", "a count"])
def test_a_fit_that_is_resumed_twice_validates_so_too(source, tmp_path):
    with pytest.raises(Killed):
        fit(source, tmp_path, Kills(epoch=0))
    trainer = killed_and_resumed(lambda kills: fit(source, tmp_path, kills), epoch=2)
    assert_same_outcome(trainer.model, unbroken(source))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: shuffled().shuffle(9, seed=4),
        lambda: shuffled().cache(),
        lambda: rows().shuffle(20, seed=3).repeat(),
        lambda: rows().map(drawn()).cache(),
    ],
)
def test_it_is_told_of_data_that_draws_as_it_is_read(draw, tmp_path):
    trainer = Trainer(sequential())
    given = dict(validation_data=draw().batch(16), validation_steps=2, resume=tmp_path)
    trainer.fit(X, Y, epochs=1, verbose=0, **given)
    assert any("draws as it is read, or caches what it draws" in message for message in trainer.messages)


def test_it_is_told_that_a_generator_begins_anew(tmp_path):
    def endless():
        while True:
            yield from rows().batch(16)

    trainer = Trainer(sequential())
    trainer.fit(X, Y, epochs=1, validation_data=endless(), validation_steps=2, verbose=0, resume=tmp_path)
    assert any("begins the generator that it validates on anew" in message for message in trainer.messages)
