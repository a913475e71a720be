"""Contracts C4 and C5: with every stock callback the run is that of `keras.Model.fit`."""

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.differential import assert_same_run, run_keras, run_ours
from tests.networks import VALIDATION_ROWS, arrays, sequential
from tests.pools import pooled
from tests.whole_fits.comparing import AtEpoch, halves

kc = keras.callbacks


def ema_model():
    return sequential(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9))


def fast_learner():
    """Overfits at once, so that val_loss rises and callbacks have something to do."""
    return sequential(keras.optimizers.SGD(0.5, momentum=0.9))


def filling(kept):
    def schedule(epoch, lr):
        seen = kept
        seen += [epoch]
        return 0.1 / len(seen)

    return schedule


def used_up(left):
    return lambda epoch, lr: lr if epoch * 2 in left else lr / 2


STOCK = {
    "early_stopping": lambda d: [kc.EarlyStopping("val_loss", patience=1)],
    "early_stopping_restore": lambda d: [kc.EarlyStopping("val_loss", patience=2, restore_best_weights=True)],
    "early_stopping_baseline": lambda d: [
        kc.EarlyStopping("val_accuracy", baseline=0.9, start_from_epoch=1, min_delta=0.01, patience=1)
    ],
    "checkpoint_all": lambda d: [kc.ModelCheckpoint(d / "{epoch:02d}-{val_loss:.3f}.keras")],
    "checkpoint_best": lambda d: [
        kc.ModelCheckpoint(d / "best.weights.h5", save_best_only=True, save_weights_only=True)
    ],
    "checkpoint_batches": lambda d: [
        kc.ModelCheckpoint(d / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=5)
    ],
    "plateau": lambda d: [kc.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=0.05)],
    "plateau_and_stop": lambda d: [
        kc.ReduceLROnPlateau("val_loss", factor=0.3, patience=0, min_delta=0.02),
        kc.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    ],
    "schedule": lambda d: [kc.LearningRateScheduler(lambda epoch, lr: lr * 0.7)],
    "schedules_that_change": lambda d: [
        kc.LearningRateScheduler(filling([])),
        kc.LearningRateScheduler(used_up(iter(range(1, 50)))),
    ],
    "backup": lambda d: [kc.BackupAndRestore(str(d / "backup"), delete_checkpoint=False)],
    "csv": lambda d: [kc.CSVLogger(str(d / "log.csv"))],
    "tensorboard": lambda d: [kc.TensorBoard(str(d / "tb"), histogram_freq=1)],
    "tensorboard_batches": lambda d: [kc.TensorBoard(str(d / "tb"), update_freq=2)],
    "nan": lambda d: [kc.TerminateOnNaN()],
    "swap_ema": lambda d: [
        kc.SwapEMAWeights(),
        kc.ModelCheckpoint(d / "{epoch}.weights.h5", save_weights_only=True),
    ],
    "swap_ema_epoch": lambda d: [
        kc.SwapEMAWeights(swap_on_epoch=True),
        kc.ModelCheckpoint(d / "{epoch}.weights.h5", save_weights_only=True),
    ],
    "all_together": lambda d: [
        kc.LearningRateScheduler(lambda epoch, lr: lr if epoch < 2 else lr * 0.9),
        kc.ReduceLROnPlateau("val_loss", factor=0.5, patience=1),
        kc.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        kc.ModelCheckpoint(d / "best.keras", monitor="val_accuracy", save_best_only=True),
        kc.CSVLogger(str(d / "log.csv")),
        kc.TensorBoard(str(d / "tb"), write_graph=False),
        kc.TerminateOnNaN(),
    ],
}


@pytest.mark.parametrize(
    "max_lag", [1, pytest.param(0, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("name", STOCK)
# `all_together` has those that are left to the night, too.
@pytest.mark.by_default("backup-1", "schedules_that_change-1")
def test_stock_callbacks_do_what_they_do_under_keras(name, max_lag, tmp_path):
    build = ema_model if "ema" in name else fast_learner
    theirs = pooled(build)
    ours = build if name == "all_together" else theirs
    data = arrays(120)
    arguments = dict(epochs=6, batch_size=16, validation_data=arrays(VALIDATION_ROWS, 1))
    (tmp_path / "keras").mkdir()
    (tmp_path / "ours").mkdir()
    expected = run_keras(theirs, STOCK[name], tmp_path / "keras", data, **arguments)
    policy = ValidationPolicy(workers=2, max_lag=max_lag, overlap="always")
    actual, _ = run_ours(ours, STOCK[name], tmp_path / "ours", data, policy, **arguments)
    assert_same_run(actual, expected)


def test_a_stop_of_the_last_but_one_epoch_undoes_the_last_one():
    """The rollback is counted, and the model stands where the callback saw it."""

    weights = []

    def stops(callback, epoch):
        if epoch == 1:
            weights.extend(callback.model.get_weights())
            callback.model.stop_training = True

    x, y = arrays()
    trainer = Trainer(sequential())
    history = trainer.fit(
        x, y, epochs=4, validation_data=arrays(40, 1), callbacks=[AtEpoch(stops)], verbose=0
    )
    assert history.epoch == [0, 1]
    assert trainer.ended == history.ended == "stopped"
    for now, then in zip(trainer.model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(now, then)
    assert [account.epoch for account in trainer.accounts] == [0, 1]


def test_continue_keeps_the_weights_and_takes_the_change():
    x, y = arrays()
    model = sequential(keras.optimizers.SGD(0.25))
    trainer = Trainer(model, validation=ValidationPolicy(on_change="continue"))
    trainer.fit(
        x, y, epochs=3, batch_size=29, validation_data=arrays(40, 1), callbacks=[halves(0)], verbose=0
    )
    assert float(model.optimizer.learning_rate) == 0.125
    assert int(model.optimizer.iterations) == 3 * 7
    assert sum(account.rolled_back_s for account in trainer.accounts) == 0
