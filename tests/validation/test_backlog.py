"""Validations that wait: what a backlog leaves out (contract C6), and when one inside an epoch is due."""

from __future__ import annotations

import keras
import pytest

from overlap_train import EpochOnly, Trainer, ValidationPolicy
from overlap_train._snapshot import Snapshot
from overlap_train._validation.step_validations import StepValidations
from overlap_train.errors import ValidationTimeoutError
from tests.networks import arrays
from tests.pools import sequential
from tests.validation.test_suite import EndedByTest, suite_of
from tests.whole_fits.test_policies import Gate


class OpenAt(keras.callbacks.Callback):
    """Opens a gate when an epoch begins."""

    def __init__(self, gate: Gate, epoch: int) -> None:
        super().__init__()
        self.gate, self.epoch = gate, epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            assert self.gate.entered.wait(60)
        if epoch == self.epoch:
            self.gate.open.set()


def test_a_backlog_leaves_epochs_out_and_never_repeats_a_value(snapshots):
    validated = [0, 4, 5]
    gate = Gate()
    policy = ValidationPolicy(workers=1, max_lag=1, backlog="latest", on_change="continue")
    trainer = Trainer(sequential(), validation=policy)
    history = trainer.fit(
        *arrays(), epochs=6, validation_data=gate.dataset(), callbacks=[OpenAt(gate, 5)], verbose=0
    )
    assert history.epoch == list(range(6))
    assert len(history.history["loss"]) == 6
    assert len(history.history["val_loss"]) == len(validated)
    assert len(set(history.history["val_loss"])) == len(validated)
    assert [a.epoch for a in trainer.accounts if not a.skipped] == validated
    assert snapshots.most <= policy.max_snapshots
    del history
    assert not snapshots.live


X, Y = arrays(64)


def test_a_validation_inside_an_epoch_has_the_same_time_limit():
    runner = EndedByTest()
    stepwise = StepValidations(suite_of(runner), 1, lambda result: None, timeout_s=0.0)
    stepwise.after(0, 1, lambda: Snapshot(0, 1, None))
    with pytest.raises(ValidationTimeoutError, match="timeout_s=0"):
        stepwise.wait()


class Listens(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.events = []

    def on_step_validation(self, step, logs):
        self.events.append(("step", step, sorted(logs)))

    def on_epoch_end(self, epoch, logs=None):
        self.events.append(("epoch", epoch))


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_callback_that_asks_gets_each_result_after_all_earlier_epochs(lag):
    listens = Listens()
    policy = ValidationPolicy(every_steps=3, max_lag=lag, overlap="always")
    trainer = Trainer(sequential(), validation=policy)
    options = {"validation_data": (X, Y), "callbacks": [EpochOnly(listens)]}
    trainer.fit(X, Y, batch_size=16, epochs=3, verbose=0, **options)
    steps = [event[1] for event in listens.events if event[0] == "step"]
    assert steps == [3, 6, 9, 12]
    assert [result.step for result in trainer.step_validations] == steps
    for at, event in enumerate(listens.events):
        if event[0] == "step":
            assert event[2] == ["val_accuracy", "val_loss"]
            ended = [e[1] for e in listens.events[:at] if e[0] == "epoch"]
            assert set(range((event[1] - 1) // 4)) <= set(ended)


def test_what_a_rollback_undoes_is_told_to_nobody():
    class StopAtFirst(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    listens = Listens()
    policy = ValidationPolicy(every_steps=1, overlap="always", max_lag=2)
    trainer = Trainer(sequential(), validation=policy)
    callbacks = [listens, StopAtFirst()]
    trainer.fit(X, Y, batch_size=16, epochs=3, verbose=0, validation_data=(X, Y), callbacks=callbacks)
    assert [event[1] for event in listens.events if event[0] == "step"] == [1, 2, 3, 4]
    assert all(result.step <= 4 for result in trainer.step_validations)
