"""Data that cannot be drawn again overlaps with callbacks that change the training: it is replayed."""

from __future__ import annotations

import functools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import (
    VALIDATION_ROWS,
    Outcome,
    arrays,
    assert_same_history,
    assert_same_outcome,
    assert_same_weights,
)
from tests.pools import sequential

X, Y = arrays()
VALIDATION = arrays(VALIDATION_ROWS, 1)
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


def through_python():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(len(X), seed=3)
    noise = np.random.default_rng(5)

    def noisy(x):
        return x + noise.normal(scale=0.1, size=x.shape).astype("float32")

    def mapped(x, y):
        made = tf.numpy_function(noisy, [x], tf.float32)
        made.set_shape(x.shape)
        return made, y

    return dataset.map(mapped).batch(BATCH)


def by_layers():
    noise = keras.Sequential([keras.layers.GaussianNoise(0.1, seed=3), keras.layers.Dropout(0.1, seed=4)])
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(len(X), seed=3).batch(BATCH)
    return rows.map(lambda x, y: (noise(x, training=True), y)).prefetch(2)


def shuffled_twice():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(len(X), seed=3)
    return dataset.batch(BATCH).shuffle(3, seed=4)


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
    "shuffled twice": (shuffled_twice, None, False),
}


def callbacks():
    return [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.2),
        keras.callbacks.EarlyStopping("val_loss", patience=6, min_delta=0.05, restore_best_weights=True),
    ]


@functools.cache
def with_keras(source):
    model = sequential()
    trained(source, model.fit, callbacks=callbacks())
    return Outcome.of(model)


def trained(source, fit, **more):
    make, steps, shuffle = SOURCES[source]
    random.seed(1)
    np.random.seed(2)
    data = make()
    fit(
        data,
        epochs=6,
        steps_per_epoch=steps,
        shuffle=shuffle,
        validation_data=VALIDATION,
        verbose=0,
        **more,
    )
    return data


FURTHER_BACK = ("generator", "reshuffled", "augmented", "through python")
"""Sources from which a rollback takes more than one epoch back; with the others it is nightly."""


@pytest.mark.parametrize(
    ("source", "lag"),
    [
        *((source, 1) for source in SOURCES),
        *(
            pytest.param(source, 3, marks=() if source in FURTHER_BACK else pytest.mark.nightly)
            for source in SOURCES
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("generator-1")
def test_a_rollback_replays_the_batches_and_the_numbers_are_those_of_keras(source, lag):
    expected = with_keras(source)
    model = sequential()
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=lag, overlap="always"))
    trained(source, trainer.fit, callbacks=callbacks())
    assert not any("in step with the training:" in message for message in trainer.messages)
    assert any("back to the end of epoch" in message for message in trainer.messages)
    assert_same_outcome(model, expected)


@pytest.mark.parametrize("source", ["generator", "reshuffled"])
@pytest.mark.by_default("generator")
def test_where_little_may_be_kept_the_training_waits(source):
    results = []
    for limit in (1 << 30, 2 * BATCH * X[0].nbytes):
        model = sequential()
        policy = ValidationPolicy(max_lag=2, overlap="always", keep_bytes=limit)
        trainer = Trainer(model, validation=policy)
        trained(source, trainer.fit, callbacks=callbacks())
        waited = any("ValidationPolicy.keep_bytes" in message for message in trainer.messages)
        assert waited == (limit < 1 << 30)
        results.append(model)
    assert_same_history(results[1].history.history, results[0].history.history)
    assert_same_weights(*results)


def test_where_nothing_may_be_kept_it_is_validated_in_step():
    trainer = Trainer(sequential(), validation=ValidationPolicy(keep_bytes=0))
    explained = trainer.explain(
        Indexed(), validation_data=VALIDATION, callbacks=[keras.callbacks.ReduceLROnPlateau("val_loss")]
    )
    assert [reason.identifier for reason in explained.reasons] == ["data-once"]
    assert "ReduceLROnPlateau may change the training, whose batches are not kept" in explained.in_step


@pytest.mark.parametrize("source", ["generator", "by index", "through python"])
def test_a_callback_that_may_reach_what_python_makes_the_data_from_keeps_it_in_step(source):
    calls = [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)]
    make, steps, _ = SOURCES[source]
    trainer = Trainer(sequential())
    explained = trainer.explain(make(), steps_per_epoch=steps, validation_data=VALIDATION, callbacks=calls)
    assert "LambdaCallback may change what Python makes the training data from" in explained.in_step
