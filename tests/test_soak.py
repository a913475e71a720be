"""Stress: short fits that fail in every way, again and again; `scripts/soak.sh [SECONDS]` runs it."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
import weakref

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._snapshot import Snapshot
from overlap_train.errors import ValidationWorkerError
from tests.networks import arrays, crossentropy

SECONDS = float(os.environ.get("OVERLAP_TRAIN_SOAK_S", "1800"))


class Fails(keras.callbacks.Callback):
    def __init__(self, hook: str) -> None:
        super().__init__()
        setattr(self, hook, self._fail)

    def _fail(self, *_, **__):
        raise RuntimeError("a callback of the user's failed")


class Interrupts(keras.callbacks.Callback):
    """Presses Ctrl-C once, at the end of the first epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            os.kill(os.getpid(), signal.SIGINT)


def failing(dataset: tf.data.Dataset, at: int) -> tf.data.Dataset:
    """A dataset that raises at batch `at`."""

    def check(index, batch):
        with tf.control_dependencies([tf.debugging.assert_less(index, tf.constant(at, tf.int64))]):
            return tf.nest.map_structure(tf.identity, batch)

    return dataset.enumerate().map(check)


def build() -> keras.Model:
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


def one_fit(rng: random.Random) -> str:
    """Makes one short fit that ends in one of the ways there are, and returns which."""
    x, y = arrays(64, rng.randint(0, 9))
    good = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    validation = tf.data.Dataset.from_tensor_slices(arrays(40, 1)).batch(8)
    policy = ValidationPolicy(
        workers=rng.randint(1, 5),
        max_lag=rng.randint(0, 2),
        backlog=rng.choice(["block", "skip", "latest"]),
        on_change=rng.choice(["rollback", "continue"]),
    )
    trainer = Trainer(build(), validation=policy)
    kind = rng.choice(["fine", "callback", "training data", "validation data", "interrupt", "stop"])
    arguments = dict(epochs=4, verbose=0, validation_data=validation)
    if kind == "fine":
        trainer.fit(x, y, **arguments)
    elif kind == "callback":
        hook = rng.choice(
            ["on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_batch_end", "on_test_end"]
        )
        with pytest.raises(RuntimeError, match="a callback of the user's"):
            trainer.fit(good, callbacks=[Fails(hook)], **arguments)
    elif kind == "training data":
        with pytest.raises(tf.errors.InvalidArgumentError):
            trainer.fit(failing(good, rng.randint(0, 3)), **arguments)
    elif kind == "validation data":
        arguments["validation_data"] = failing(validation, rng.randint(1, 4))  # batch 0 is tried before
        with pytest.raises(ValidationWorkerError):
            trainer.fit(x, y, **arguments)
    elif kind == "interrupt":
        trainer.fit(x, y, callbacks=[Interrupts()], **arguments)
        assert trainer.ended in ("interrupted by SIGINT", "completed")
    else:
        trainer.fit(x, y, callbacks=[keras.callbacks.EarlyStopping("val_loss", patience=0)], **arguments)
    return kind


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:Early stopping conditioned on metric")  # of epochs that were skipped
@pytest.mark.timeout(SECONDS + 600)
def test_thousands_of_short_fits_leave_nothing_behind(monkeypatch):
    rng = random.Random(0)
    process = psutil.Process()
    live: weakref.WeakSet[Snapshot] = weakref.WeakSet()
    created = Snapshot.__init__

    def tracked(self, *args, **kwargs):
        created(self, *args, **kwargs)
        live.add(self)

    monkeypatch.setattr(Snapshot, "__init__", tracked)
    threads = threading.active_count()
    start_s, fits, kinds = time.monotonic(), 0, set()
    memory: list[int] = []
    while time.monotonic() - start_s < SECONDS:
        kinds.add(one_fit(rng))
        fits += 1
        if fits % 50 == 0:
            keras.backend.clear_session()
            gc.collect()
            assert not live, f"{len(live)} snapshots were not released after {fits} fits"
            assert threading.active_count() <= threads + 1, [t.name for t in threading.enumerate()]
            memory.append(process.memory_info().rss)
    # The first third warms TensorFlow's caches and allocator up.
    third = len(memory) // 3
    assert third >= 1, f"only {fits} fits in {SECONDS} s: too few to judge memory; give more seconds"
    before, after = np.median(memory[third : 2 * third]), np.median(memory[2 * third :])
    print(f"{fits} fits of kinds {sorted(kinds)}; memory {before / 2**20:.0f} -> {after / 2**20:.0f} MiB")
    assert after <= before * 1.05, f"memory grew from {before} to {after} bytes"
