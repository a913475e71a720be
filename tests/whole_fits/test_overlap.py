"""Contracts C3 and C1's release: training really runs beside a validation, never further ahead than allowed.

The validation is held up by an event that a later training step sets, so an overlap does not depend on luck.
"""

import gc
import threading
import weakref

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from overlap_train._fit.deliveries import Deliveries
from overlap_train._fit.lag import IdleCores
from overlap_train._validation.backlog import Backlog
from overlap_train._validation.runner import ValidationRunner
from overlap_train.monitoring import overlap_s
from tests.networks import VALIDATION_ROWS, arrays, assert_same_history, linear

WAIT_S = 60
STEPS = 4
X, Y = arrays(STEPS * 16)
VALIDATION = arrays(VALIDATION_ROWS, 1)

pytestmark = pytest.mark.usefixtures("steps_may_wait")


class Held(Trainer):
    """Validation steps wait until `train_steps` training steps have been made.

    With `meets`, the last of those steps and all further ones wait until a validation step has begun.
    """

    def __init__(self, model, train_steps, *, meets=False, **arguments):
        super().__init__(model, **arguments)
        self.begun = threading.Event()
        self.meets = meets
        self.made = 0
        self.wanted = train_steps
        self.go_on = threading.Event()
        self.timed_out = False

    def train_step(self, batch):
        def count():
            self.made += 1
            if self.made >= self.wanted:
                self.timed_out |= self.meets and not self.begun.wait(WAIT_S)
                self.go_on.set()
            return 0

        with tf.control_dependencies([tf.py_function(count, [], tf.int32)]):
            return super().train_step(tf.nest.map_structure(tf.identity, batch))

    def validation_step(self, batch):
        def hold():
            self.begun.set()
            self.timed_out |= not self.go_on.wait(WAIT_S)
            return 0

        with tf.control_dependencies([tf.py_function(hold, [], tf.int32)]):
            return super().validation_step(tf.nest.map_structure(tf.identity, batch))


def held(train_steps, *, meets=False, **policy):
    policy = ValidationPolicy(**{"overlap": "always"} | policy)
    return Held(linear(), train_steps, meets=meets, validation=policy)


def fit(trained, epochs=3, callbacks=(), **arguments):
    given = {"validation_data": VALIDATION, "batch_size": 16, "shuffle": False, "verbose": 0, **arguments}
    return trained.fit(X, Y, epochs=epochs, callbacks=list(callbacks), **given).history


def spans(trainer, name, *epochs):
    return [s for s in trainer.recorder.spans() if s.name == name and s.epoch in epochs]


def at_ends(act):
    return keras.callbacks.LambdaCallback(on_epoch_end=act)


def test_the_next_epoch_is_trained_while_this_one_is_validated():
    # One step of epoch 1 has to be over before the validation of epoch 0 may go on.
    trainer = held(STEPS + 1, meets=True, workers=2)
    history = fit(trainer)
    assert not trainer.timed_out, "training and validation did not meet"
    trained, validated = spans(trainer, "train", 1), spans(trainer, "validate", 0)
    assert overlap_s(trained, validated) > 0
    assert len(validated) == 2
    assert {s.thread for s in validated} <= {"validation-0", "validation-1"}
    assert {s.thread for s in trained} == {threading.current_thread().name}
    assert trainer.accounts[0].hidden_s > 0
    assert_same_history(history, fit(linear()))


def test_without_lag_no_epoch_begins_before_the_last_one_is_validated():
    trainer = held(STEPS, workers=2, max_lag=0)
    fit(trainer)
    assert not trainer.timed_out
    for epoch in range(3):
        assert overlap_s(spans(trainer, "train", 0, 1, 2), spans(trainer, "validate", epoch)) == 0
        assert spans(trainer, "wait", epoch)
    assert [account.hidden_s for account in trainer.accounts] == [0, 0, 0]


@pytest.mark.cpu_only("validations on a GPU take no cores from the training")
@pytest.mark.parametrize(
    ("left", "workers", "in_step"), [(0.1, 1, True), (1.9, 1, False), (0.1, ["CPU:0"], False)]
)
@pytest.mark.default_options
def test_epochs_are_validated_in_step_where_the_training_leaves_no_core(left, workers, in_step, monkeypatch):
    """A validation with devices of its own needs none of the training's cores."""
    monkeypatch.setattr(IdleCores, "left", property(lambda _: left))
    monkeypatch.setattr(Deliveries, "ready", lambda _: False)
    policy = ValidationPolicy(workers=workers)
    trainer = Trainer(linear(), validation=policy, execution=ExecutionPlan(batch_splits=1))
    fit(trainer, epochs=4)
    assert any("of a core idle" in m for m in trainer.messages) is in_step
    assert not in_step or not any(account.hidden_s for account in trainer.accounts)


@pytest.mark.by_default("0", "2")
@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_at_most_max_lag_later_epochs_have_begun_at_delivery(max_lag):
    # The validation of epoch 0 is held until the last step that the lag allows, so the bound is reached.
    trainer, delivered = held(STEPS * (max_lag + 1), max_lag=max_lag), []

    def note(epoch, logs):
        begun = max(s.epoch for s in trainer.recorder.spans() if s.name == "train")
        delivered.append((epoch, begun - epoch))
        assert "val_loss" in logs

    fit(trainer, epochs=5, callbacks=[at_ends(note)])
    assert not trainer.timed_out
    assert [epoch for epoch, _ in delivered] == [0, 1, 2, 3, 4], "in epoch order"
    assert delivered[0][1] == max(lag for _, lag in delivered) == max_lag


def test_an_epoch_whose_validation_is_over_is_delivered_before_the_next_one_is_trained(monkeypatch):
    monkeypatch.setattr(Backlog, "ready", lambda _: True)
    trainer, made = held(STEPS), []
    fit(trainer, callbacks=[at_ends(lambda epoch, logs: made.append(trainer.made))])
    assert made == [STEPS, 2 * STEPS, 3 * STEPS]


def test_a_snapshot_lives_until_its_delivery_and_no_longer(monkeypatch):
    alive, seen = {}, []
    start = ValidationRunner.start

    def remember(self, snapshot):
        alive[snapshot.epoch] = [weakref.ref(snapshot), *map(weakref.ref, snapshot.values.trainable)]
        return start(self, snapshot)

    def living():
        gc.collect()
        return {epoch for epoch, references in alive.items() if any(r() is not None for r in references)}

    monkeypatch.setattr(ValidationRunner, "start", remember)
    watch = at_ends(lambda epoch, logs: seen.append((epoch, living())))
    fit(held(STEPS + 1, workers=2), epochs=4, callbacks=[watch])
    assert len(seen) == 4
    for epoch, kept in seen:
        assert epoch in kept
        assert not {e for e in kept if e < epoch}, "an earlier snapshot is still alive"
        assert len(kept) <= 2
    assert living() == set()


def test_no_validation_means_no_lag_and_every_epoch_is_delivered():
    trainer, delivered = Trainer(linear()), []
    order = at_ends(lambda epoch, logs: delivered.append((epoch, sorted(logs))))
    fit(trainer, callbacks=[order], validation_data=None)
    assert delivered == [(0, ["loss"]), (1, ["loss"]), (2, ["loss"])]
    assert not spans(trainer, "validate", 0, 1, 2)
