"""Validation data that draws anew each time, and data that others write to, in a fit that is resumed."""

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
    AtEpoch,
    X,
    Y,
    counted,
    killed_and_resumed,
    layered,
    noisy,
    slices,
)
from tests.whole_fits.test_pipelines import WRITTEN

# Where the size of a dataset is unknown, Keras says at its end that it ran out.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
STEPS = 13  # of an epoch of 203 rows in batches of 16


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


def written(make):
    """Return a function that makes arguments of data which both roles or a callback write to."""

    def arguments():
        data, validation, act, _ = make()
        return {"x": data, "validation_data": validation, "callbacks": [AtEpoch(act)]}

    return arguments


def validated(make, **more):
    return lambda: {"validation_data": make(), "callbacks": [], **more}


# Each makes arguments of `fit`; the training data, where it gives none, is shuffled rows.
SOURCES = {
    "layers": validated(lambda: rows().batch(16).map(layered())),
    "a generator": validated(lambda: rows().map(drawn()).batch(16)),
    "a count": validated(lambda: rows().batch(16).map(counted(tf.Variable(0)))),
    "some of a shuffle": validated(lambda: shuffled().take(40).batch(16)),
    "steps of a shuffle": validated(lambda: shuffled().batch(16), validation_steps=2),
    "shuffled and augmented": validated(
        lambda: rows().map(drawn()).shuffle(VALIDATION_ROWS, seed=3).take(40).batch(16)
    ),
    "two sets of one shuffle": validated(two_sets_of_one_shuffle, validation_freq=2),
    "python": validated(Noisy),
    "two sets of python": validated(lambda: {"first": Noisy(), "rest": Noisy(6)}, validation_freq=2),
    **{make.__name__: written(make) for make in WRITTEN},
}


def fit(source, directory, kills, *, lag=1, every=None):
    policy = ValidationPolicy(max_lag=lag, overlap="always", every_steps=every)
    trainer = Trainer(sequential(), validation=policy, execution=SHORT_CALLS)
    given = {"x": slices().shuffle(9, seed=2).batch(16), **SOURCES[source](), "resume": directory}
    given["callbacks"].append(kills)
    trainer.fit(**given, epochs=4, verbose=0)
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
def test_a_resumed_fit_draws_and_writes_what_the_unbroken_one_does(source, kill, lag, every, tmp_path):
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


def test_it_is_told_that_a_generator_begins_anew(tmp_path):
    def endless():
        while True:
            yield from rows().batch(16)

    trainer = Trainer(sequential())
    trainer.fit(X, Y, epochs=1, validation_data=endless(), validation_steps=2, verbose=0, resume=tmp_path)
    assert any("begins the generator that it validates on anew" in message for message in trainer.messages)
