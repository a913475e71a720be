"""Data that cannot be drawn again overlaps with callbacks that change the training: it is replayed."""

import functools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import Outcome, assert_same_outcome
from tests.pools import sequential
from tests.whole_fits.comparing import VALIDATION, X, Y, goes_back, layered, slices, waits

BATCH = 16


class Indexed(keras.utils.PyDataset):
    """Batches by their number."""

    def __init__(self, **options):
        super().__init__(**options)
        self.order = np.arange(len(X) // BATCH * BATCH)

    def __len__(self):
        return len(self.order) // BATCH

    def __getitem__(self, index):
        rows = self.order[index * BATCH : index * BATCH + BATCH]
        return X[rows], Y[rows]


class Reshuffled(Indexed):
    """Changes its order at an epoch's end, from a seed of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.random = np.random.default_rng(4)

    def on_epoch_end(self):
        self.random.shuffle(self.order)


class Augmented(Indexed):
    """Draws from NumPy's global generator in each batch, and grows harder with the epochs."""

    def __init__(self):
        super().__init__()
        self.scale = 0.0

    def on_epoch_begin(self):
        self.scale += 0.1

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + self.scale * np.random.normal(size=x.shape).astype("float32"), y


class Endless(Indexed):
    __len__ = None

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return super().__getitem__(index % 5)


def generator():
    rng = np.random.default_rng(7)
    while True:
        rows = rng.integers(0, len(X), BATCH)
        yield X[rows], Y[rows]


def shuffled():
    return slices().shuffle(len(X), seed=3)


def through_python():
    noise = np.random.default_rng(5)

    def noisy(x):
        return x + noise.normal(scale=0.1, size=x.shape).astype("float32")

    def mapped(x, y):
        return tf.ensure_shape(tf.numpy_function(noisy, [x], tf.float32), x.shape), y

    return shuffled().map(mapped).batch(BATCH)


def by_layers():
    noise = keras.layers.GaussianNoise(0.1, seed=3), keras.layers.Dropout(0.1, seed=4)
    return shuffled().batch(BATCH).map(layered(*noise)).prefetch(2)


# What makes the data, the steps of an epoch, and `shuffle`.
SOURCES = {
    "generator": (generator, 4, False),
    "by index": (Indexed, None, False),
    "in Keras's order": (Indexed, None, True),
    "in parts": (Indexed, 3, False),
    "reshuffled": (Reshuffled, None, False),
    "two threads": (lambda: Reshuffled(workers=2), None, False),
    "augmented": (Augmented, None, True),
    "endless": (Endless, 4, False),
    "through python": (through_python, None, False),
    "by layers": (by_layers, None, False),
    "shuffled twice": (lambda: shuffled().batch(BATCH).shuffle(3, seed=4), None, False),
}


def callbacks():
    return [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.2),
        keras.callbacks.EarlyStopping("val_loss", patience=6, min_delta=0.05, restore_best_weights=True),
    ]


def trained(source, fit):
    make, steps, shuffle = SOURCES[source]
    random.seed(1)
    np.random.seed(2)
    given = {"steps_per_epoch": steps, "shuffle": shuffle, "validation_data": VALIDATION}
    fit(make(), epochs=6, **given, callbacks=callbacks(), verbose=0)


@functools.cache
def with_keras(source):
    model = sequential()
    trained(source, model.fit)
    return Outcome.of(model)


# From the others no rollback takes more than one epoch back.
FURTHER_BACK = ("generator", "reshuffled", "augmented", "through python")


@pytest.mark.parametrize(
    ("source", "lag"), [*((source, 1) for source in SOURCES), *((source, 3) for source in FURTHER_BACK)]
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("generator-1")
def test_a_rollback_replays_the_batches_and_the_numbers_are_those_of_keras(source, lag):
    expected = with_keras(source)
    trainer = Trainer(sequential(), validation=ValidationPolicy(max_lag=lag, overlap="always"))
    trained(source, trainer.fit)
    assert not waits(trainer)
    assert goes_back(trainer)
    assert_same_outcome(trainer.model, expected)


@pytest.mark.parametrize("source", ["generator", "reshuffled"])
@pytest.mark.by_default("generator")
def test_where_little_may_be_kept_the_training_waits(source):
    policy = ValidationPolicy(max_lag=2, overlap="always", keep_bytes=2 * BATCH * X[0].nbytes)
    trainer = Trainer(sequential(), validation=policy)
    trained(source, trainer.fit)
    assert any("ValidationPolicy.keep_bytes" in message for message in trainer.messages)
    assert_same_outcome(trainer.model, with_keras(source))


@pytest.mark.parametrize(
    ("source", "policy", "callback", "said"),
    [
        (
            *("by index", ValidationPolicy(keep_bytes=0), keras.callbacks.ReduceLROnPlateau),
            "ReduceLROnPlateau may change the training, whose batches are not kept",
        ),
        *(
            (
                *(source, ValidationPolicy(), lambda: keras.callbacks.LambdaCallback(on_epoch_end=print)),
                "LambdaCallback may change what Python makes the training data from",
            )
            for source in ("generator", "by index", "through python")
        ),
    ],
    ids=["nothing kept", "generator", "by index", "through python"],
)
def test_where_nothing_is_kept_or_python_may_be_reached_it_is_validated_in_step(
    source, policy, callback, said
):
    make, steps, _ = SOURCES[source]
    given = {"steps_per_epoch": steps, "validation_data": VALIDATION, "callbacks": [callback()]}
    explained = Trainer(sequential(), validation=policy).explain(make(), **given)
    assert [reason.identifier for reason in explained.reasons] == ["data-once"]
    assert said in explained.in_step
