"""Validation inside epochs: when it is due, by steps and by time, and who gets the results."""

from __future__ import annotations

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._validation.backlog import StepSchedule
from tests.networks import arrays
from tests.pools import sequential

X, Y = arrays(64)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_by_time_a_validation_is_due_once_the_time_has_passed_since_the_last_began():
    clock = Clock()
    schedule = StepSchedule(every_seconds=10.0, clock=clock)
    assert not schedule.due(0, 1)  # the time counts from here
    clock.now = 9.9
    assert not schedule.due(1, 2)
    clock.now = 10.0
    assert schedule.due(2, 3)
    schedule.begun()
    clock.now = 19.0
    assert not schedule.due(3, 4)
    assert schedule.steps_left(3) is None


def test_by_steps_and_by_time_whichever_comes_first():
    clock = Clock()
    schedule = StepSchedule(every_steps=4, every_seconds=10.0, clock=clock)
    assert schedule.steps_left(3) == 1
    assert not schedule.due(0, 3)
    assert schedule.due(3, 4)
    clock.now = 10.0
    assert schedule.due(4, 5)


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
    trainer.fit(X, Y, batch_size=16, epochs=3, verbose=0, validation_data=(X, Y), callbacks=[listens])
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


def test_a_short_time_validates_between_any_two_calls():
    policy = ValidationPolicy(every_seconds=1e-9, overlap="always")
    trainer = Trainer(sequential(), validation=policy)
    trainer.fit(X, Y, batch_size=4, epochs=3, verbose=0, validation_data=(X, Y))
    assert trainer.step_validations
    steps = [result.step for result in trainer.step_validations]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "1", [1]])
def test_bad_times_are_refused_by_name(value):
    with pytest.raises((TypeError, ValueError), match="every_seconds"):
        ValidationPolicy(every_seconds=value)
