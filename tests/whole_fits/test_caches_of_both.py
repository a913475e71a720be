"""A file in which `tf.data` caches the training and the validation data is written by one pass at a time."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, assert_same_history
from tests.whole_fits.test_lengths_of_passes import network

X, Y = arrays(96)
POLICIES = ValidationPolicy(max_lag=2, overlap="always"), ValidationPolicy(on_change="continue")


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def split(file):
    base = rows().cache(file)
    return base.skip(32).batch(16), base.take(32).batch(16)


def split_and_shuffled(file):
    base = rows().map(lambda x, y: (2 * x, y)).cache(file).prefetch(2)
    return base.skip(32).shuffle(64, seed=3).batch(10), base.take(32).batch(10)


def by_batches(file):
    base = rows().batch(16).cache(file)
    return base.skip(2), base.take(2)


def of_unknown_length(file):
    base = rows().filter(lambda x, y: x[0] < 1.0).cache(file)
    return base.skip(32).batch(16), base.take(32).batch(16)


def one_name(file):
    return rows().cache(file).batch(16), (rows().cache(file).batch(16),)


def within(file):
    """Caches the split in memory as well."""
    train, validation = split(file)
    return train.cache(), validation.cache()


SPLITS = [split, split_and_shuffled, by_batches, of_unknown_length, one_name, within]


@pytest.mark.nightly
@pytest.mark.parametrize("policy", POLICIES, ids=["rollback", "continue"])
@pytest.mark.parametrize("make", SPLITS)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("within-rollback")
def test_it_is_written_by_the_training_and_read_by_the_validation(make, policy, tmp_path):
    found = []
    for ours in (False, True):
        model = network(run_eagerly=not ours)  # Keras fetches ahead, and must be done before it validates
        trainer = Trainer(model, validation=policy)
        train, validation = make(str(tmp_path / f"cache{ours}"))
        fit = trainer.fit if ours else model.fit
        histories = [
            fit(train, validation_data=validation, epochs=epochs, validation_freq=freq, verbose=0).history
            for epochs, freq in ((3, 1), (2, 2))  # the second finds the whole file
        ]
        found.append((histories, model.get_weights()))
    (expected, weights), (actual, ours) = found
    for one, other in zip(actual, expected, strict=True):
        assert_same_history(one, other)
    for one, other in zip(ours, weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert policy.overlap != "always" or not any("in step" in message for message in trainer.messages)


def test_a_file_of_its_own_is_no_hindrance(tmp_path):
    train, _ = split(str(tmp_path / "training"))
    _, validation = split(str(tmp_path / "validation"))
    trainer = Trainer(network(), validation=POLICIES[0])
    trainer.fit(train, validation_data=validation, epochs=2, verbose=0)
    assert not any("in step" in message for message in trainer.messages)
