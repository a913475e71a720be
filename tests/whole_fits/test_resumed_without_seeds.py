"""A program that sets no seed has one result behind a checkpoint, however often it is killed and resumed.

Each fit begins as in a process of its own: with other seeds, and a model with other weights.
`tests/test_readme_kills.py` does it in processes.
"""

from __future__ import annotations

import secrets
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, ExecutionPlan, Trainer, ValidationPolicy
from tests.killing import Killed, Kills
from tests.networks import CLASSES, FEATURES, Outcome, arrays, crossentropy
from tests.whole_fits.test_replay import Indexed

X, Y = arrays(60)
IMAGES = X.reshape(-1, FEATURES, 1, 1)
VALIDATION = arrays(24, 1)
STEPS, EPOCHS = 4, 4
layers, Dataset = keras.layers, tf.data.Dataset

pytestmark = pytest.mark.default_options


@pytest.fixture(autouse=True)
def seeds_of_others():
    yield
    keras.utils.set_random_seed(0)


def dropout():
    return [layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(CLASSES)]


def augmenting():
    return [layers.RandomFlip(), layers.RandomTranslation(0.2, 0), layers.Flatten(), layers.Dense(CLASSES)]


class Noisy(keras.Sequential):
    """Its step draws from Keras's global generator."""

    def train_step(self, data):
        x, y, *weight = data
        noise = keras.random.normal(keras.ops.shape(x), stddev=0.1)
        return super().train_step((x + noise, y, *weight))


class Shuffled(Indexed):
    """Draws its order, and noise, from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng()

    def on_epoch_end(self):
        self.random.shuffle(self.order)

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + self.random.normal(size=x.shape).astype("float32"), y


def rows():
    return Dataset.from_tensor_slices((X, Y))


def noise(x, y):
    return x + tf.random.uniform([FEATURES]), y


of_arrays = {"x": X, "y": Y, "batch_size": 16}
CASES = {
    "arrays": (dropout, lambda: of_arrays),
    "some of arrays": (
        dropout,
        lambda: of_arrays | {"validation_split": 0.25, "class_weight": {0: 2.0}, "initial_epoch": 1},
    ),
    "epochs of two steps": (dropout, lambda: of_arrays | {"steps_per_epoch": 2}),
    "layers that augment": (augmenting, lambda: of_arrays | {"x": IMAGES, "validation_data": (IMAGES, Y)}),
    "Keras's global generator": (dropout, lambda: of_arrays),
    "shuffle": (dropout, lambda: {"x": rows().shuffle(60).batch(16).prefetch(2)}),
    "shuffles of both": (
        dropout,
        lambda: {
            "x": rows().shuffle(40).map(lambda x, y: (x, y), num_parallel_calls=2).batch(16),
            "validation_data": Dataset.from_tensor_slices(VALIDATION).shuffle(24).batch(8),
            "validation_steps": 2,
        },
    ),
    "PyDataset": (dropout, lambda: {"x": Shuffled()}),
}


def fit(name, directory, every_steps=2, **kill):
    """Fits as a process does that has just begun; returns what comes of it and what was said."""
    keras.utils.set_random_seed(secrets.randbits(31))
    tf.random.set_seed(None)
    make, data = CASES[name]
    shape = IMAGES.shape[1:] if make is augmenting else (FEATURES,)
    kind = Noisy if name == "Keras's global generator" else keras.Sequential
    model = kind([keras.Input(shape), *make()])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), crossentropy(), metrics=["accuracy"])
    plan = ExecutionPlan(kernels="keras", batch_splits=1, jit=False)
    trainer = Trainer(model, execution=plan, validation=ValidationPolicy(workers=2, overlap="always"))
    options = {"validation_data": VALIDATION, "epochs": EPOCHS, "verbose": 0, **data()}
    if "validation_split" in options:
        del options["validation_data"]
    policy = CheckpointPolicy(directory=directory, every_steps=every_steps, keep=99)
    trainer.fit(**options, callbacks=[Kills(**kill)], resume=policy)
    return Outcome.of(model), trainer.messages


def killed(name, directory, **kill):
    with pytest.raises(Killed):
        fit(name, directory, **kill)


def assert_equal(one: Outcome, other: Outcome):
    assert one.history == other.history
    assert one.epochs == other.epochs
    for a, b in zip(one.values, other.values, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.by_default("some of arrays")
@pytest.mark.parametrize("name", CASES)
def test_a_killed_run_ends_as_the_unbroken_one(name, tmp_path):
    killed(name, tmp_path / "first", step=STEPS + 1)  # epochs of two steps: the first is delivered
    _, *later = sorted((tmp_path / "first").glob("ckpt-*"))
    for checkpoint in later:
        checkpoint.unlink()
    shutil.copytree(tmp_path / "first", tmp_path / "again")
    unbroken, said = fit(name, tmp_path / "first")
    killed(name, tmp_path / "again", step=STEPS + 1)
    assert_equal(fit(name, tmp_path / "again")[0], unbroken)
    assert not any("other numbers" in text for text in said)


@pytest.mark.nightly
def test_two_runs_without_a_seed_differ(tmp_path):
    """Or the other tests would say nothing."""
    one, other = (fit("PyDataset", tmp_path / name)[0] for name in ("one", "other"))
    assert one.history["loss"] != other.history["loss"]


@pytest.mark.by_default("a shuffle that keeps its order")
@pytest.mark.parametrize(
    ("x", "draws"),
    [
        (lambda: rows().map(noise).batch(16), "the training data draws without a seed (RandomUniform)"),
        (lambda: rows().shuffle(9, reshuffle_each_iteration=False).batch(16), "(shuffle once)"),
        (lambda: rows().shuffle(60).repeat().batch(16), "the training data draws without a seed (shuffle)"),
    ],
    ids=["a function", "a shuffle that keeps its order", "a shuffle that begins anew"],
)
def test_what_cannot_be_had_again_is_said(x, draws, tmp_path, monkeypatch):
    monkeypatch.setitem(CASES, "lost", (dropout, lambda: {"x": x(), "steps_per_epoch": STEPS, "epochs": 1}))
    (said,) = (text for text in fit("lost", tmp_path)[1] if "other numbers" in text)
    assert draws in said
    assert "keras.utils.set_random_seed" in said
