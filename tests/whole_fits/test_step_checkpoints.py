"""Checkpoints inside an epoch: what goes on from one ends as what was never interrupted."""

from __future__ import annotations

import functools
import os
import signal
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from overlap_train._checkpoint import container
from overlap_train._checkpoint.store import CheckpointStore
from tests.killing import Killed, Kills, kill
from tests.networks import VALIDATION_ROWS, Outcome, arrays, assert_same_outcome
from tests.pools import sequential
from tests.seeds import kernels_are_kept

X, Y = arrays()
VALIDATION = arrays(VALIDATION_ROWS, 1)
STEPS = 13  # of an epoch of 203 rows in batches of 16


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def from_arrays():
    return {"x": X, "y": Y, "batch_size": 16}


def from_arrays_by_steps():
    return {"x": X, "y": Y, "batch_size": 16, "steps_per_epoch": 5}


def from_pipeline():
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(len(X), seed=5)
    return {"x": rows.batch(16)}


def from_endless_pipeline():
    return {"x": from_pipeline()["x"].repeat(), "steps_per_epoch": 5}


def from_augmented_pipeline():
    noise = keras.layers.GaussianNoise(0.5, seed=3)
    return {"x": from_pipeline()["x"].map(lambda x, y: (noise(x, training=True), y)).prefetch(3)}


def from_endless_augmented_pipeline():
    generator = tf.random.Generator.from_seed(5)
    rows = from_pipeline()["x"].map(lambda x, y: (x + generator.normal(tf.shape(x)), y))
    return {"x": rows.repeat().prefetch(3), "steps_per_epoch": 5}


SOURCES = [
    *(from_arrays, from_arrays_by_steps, from_pipeline, from_endless_pipeline),
    *(from_augmented_pipeline, from_endless_augmented_pipeline),
]


def fit(data, resume, *, step=10**9, how=kill, lag=0, **more):
    model = sequential()
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=lag, overlap="always"))
    callbacks = [
        Kills(step, how),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05),
        keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True),
    ]
    options = {"epochs": 4, "validation_data": VALIDATION, "callbacks": callbacks, "verbose": 0, **more}
    trainer.fit(**data(), resume=resume, **options)
    return trainer


def outcome(trainer):
    return Outcome.of(trainer.model)


def same(trainer, expected):
    assert_same_outcome(trainer.model, expected)


@functools.cache
def unbroken(data):
    return outcome(fit(data, None))


@pytest.mark.parametrize("data", SOURCES)
@pytest.mark.parametrize("step", [3, STEPS + 2])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("3-from_augmented_pipeline")
def test_killed_inside_an_epoch_the_same_call_goes_on_from_there(tmp_path, data, step):
    expected = unbroken(data)
    policy = CheckpointPolicy(directory=tmp_path / "run", every_steps=2)
    with pytest.raises(Killed):
        fit(data, policy, step=step)
    trainer = fit(data, policy)
    resumed = [message for message in trainer.messages if message.startswith("resumed")]
    assert resumed[0].startswith("resumed inside epoch")
    same(trainer, expected)


def seeded_arrays(seed):
    with kernels_are_kept():
        tf.random.set_seed(seed)
    return from_arrays()


@pytest.mark.by_default("one-inside the second")
@pytest.mark.parametrize("step", [3, STEPS + 2], ids=["inside the first epoch", "inside the second"])
@pytest.mark.parametrize("seeds", [(0, 9), (0, None), (None, 9)], ids=["another", "none", "one"])
def test_another_global_seed_changes_no_order_of_rows(tmp_path, monkeypatch, seeds, step):
    before, then = (functools.partial(seeded_arrays, seed) for seed in seeds)
    policy = CheckpointPolicy(directory=tmp_path / "run", every_steps=1)
    with pytest.raises(Killed):
        fit(before, policy, step=step)
    resumed = outcome(fit(then, policy))
    if seeds[0] is None:  # which nobody draws twice alike
        assert len(resumed.history["loss"]) == 4
    else:
        same(fit(before, None), resumed)


@pytest.fixture
def no_handler():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.by_default("from_arrays_by_steps", "from_endless_pipeline")
@pytest.mark.parametrize("data", SOURCES)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_terminated_fit_leaves_a_checkpoint_of_where_it_stood(tmp_path, data, no_handler):
    expected = unbroken(data)
    stopped = fit(data, tmp_path / "run", step=8, how=terminate)
    assert stopped.ended == "interrupted by SIGTERM"
    trainer = fit(data, tmp_path / "run")
    where = "epoch 2, after 3" if "steps_per_epoch" in data() else "epoch 1, after 8"
    assert f"resumed inside {where} of its steps" in trainer.messages
    same(trainer, expected)


def fit_with_a_gate(resume, *, step=10**9, opened=True):
    """Trains with an evaluation that waits until the fit is killed, unless it is open from the start."""
    gate = threading.Event()
    if opened:
        gate.set()

    def gated(model):
        gate.wait(60)
        return float(np.sum(np.abs(model.get_weights()[0])))

    def end():
        gate.set()
        raise Killed

    policy = ValidationPolicy(overlap="always", functions={"gated": gated})
    trainer = Trainer(sequential(), validation=policy)
    plateau = keras.callbacks.ReduceLROnPlateau("val_gated", mode="min", factor=0.5, patience=1)
    callbacks = [Kills(step, end), plateau]
    arguments = {"epochs": 4, "validation_data": VALIDATION, "callbacks": callbacks, "resume": resume}
    trainer.fit(X, Y, batch_size=16, verbose=0, **arguments)
    return trainer


def test_epochs_that_wait_for_their_validation_are_in_it(tmp_path):
    policy = CheckpointPolicy(directory=tmp_path / "run", every_steps=4)
    with pytest.raises(Killed):
        fit_with_a_gate(policy, step=STEPS + 9, opened=False)
    trainer = fit_with_a_gate(policy)
    assert "resumed inside epoch 2, after 7 of its steps" in trainer.messages
    same(trainer, outcome(fit_with_a_gate(None)))


class Terminates(keras.callbacks.Callback):
    """Ends the fit as an epoch begins."""

    overlap_safe = True

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def get_state(self):
        return None

    def set_state(self, state):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            terminate()


def test_terminated_before_an_epochs_first_step_its_metrics_are_its_own(tmp_path, no_handler):
    def train(epoch, resume):
        trainer = Trainer(sequential(), validation=ValidationPolicy(overlap="always"))
        callbacks = [Terminates(epoch), keras.callbacks.ReduceLROnPlateau("val_loss", patience=9)]
        arguments = {"epochs": 4, "validation_data": VALIDATION, "callbacks": callbacks, "resume": resume}
        trainer.fit(X, Y, batch_size=16, verbose=0, **arguments)
        return trainer

    policy = CheckpointPolicy(directory=tmp_path / "run", every_epochs=9)
    assert train(2, policy).ended == "interrupted by SIGTERM"
    trainer = train(99, policy)
    assert "resumed inside epoch 3, after 0 of its steps" in trainer.messages
    same(trainer, outcome(train(99, None)))


def test_a_delivery_leaves_the_newer_checkpoint_the_newest(tmp_path):
    policy = CheckpointPolicy(directory=tmp_path / "run", every_steps=3, keep=99)
    trainer = Trainer(sequential(), validation=ValidationPolicy(overlap="always"))
    trainer.fit(X, Y, batch_size=16, epochs=3, validation_data=VALIDATION, verbose=0, resume=policy)
    steps = [container.read(path).step for path in CheckpointStore(policy.directory, 99).paths]
    assert steps == sorted(set(steps))
    assert steps[:4] == [3, 6, 9, 12]
    assert steps[-1] == 3 * STEPS


def test_an_order_of_rows_without_a_seed_is_kept_inside_an_epoch(tmp_path):
    x = 2.0 ** np.arange(20, dtype="float32")[:, None]  # the mean tells which rows an epoch had

    def train(step):
        tf.random.set_seed(None)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[rows_seen])
        policy = CheckpointPolicy(directory=tmp_path / "run", every_steps=1)
        history = Trainer(model).fit(
            0 * x, x, batch_size=4, verbose=0, callbacks=[Kills(step, kill)], resume=policy
        )
        return history.history["rows_seen"]

    with pytest.raises(Killed):
        train(3)
    assert train(99) == [pytest.approx(x.mean())]


def rows_seen(y_true, y_pred):
    return tf.reduce_mean(y_true, axis=-1)


def test_a_handler_of_the_users_is_called_and_what_it_raises_comes_at_the_end(tmp_path):
    called = []

    def leave(number, frame):
        called.append(number)
        raise SystemExit(3)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit):
            fit(from_arrays, tmp_path / "run", step=5, how=terminate)
        assert signal.getsignal(signal.SIGTERM) is leave
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [signal.SIGTERM]
    same(fit(from_arrays, tmp_path / "run"), unbroken(from_arrays))
