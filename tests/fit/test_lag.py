"""Running ahead waits where cores are busy, where it does not pay, and where it is rolled back too often."""

from types import SimpleNamespace

import keras
import pytest

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from overlap_train._fit.deliveries import Deliveries
from overlap_train._fit.lag import IdleCores, LagControl
from overlap_train._support.reasons import Reason
from overlap_train.errors import OverlapError
from tests.networks import arrays
from tests.pools import sequential

CORES = 2


def control(*, streamed=True, **options):
    """Returns a control, what it reads the idle cores from, and what it says."""
    idle, said = IdleCores(CORES), []
    lag = LagControl(SimpleNamespace(max_lag=1), said.append, idle, streamed=streamed, **options)
    return lag, idle, said


def train(idle, busy):
    """Five calls with so many cores busy: as many as are remembered."""
    for _ in range(5):
        idle.observe(0.25, busy * 0.25)


@pytest.mark.parametrize(
    ("busy", "waits"), [(1.0, False), (1.4, False), (1.6, True), (2.0, True), (2.2, True)]
)
def test_waits_where_hardly_any_core_is_idle(busy, waits):
    lag, idle, said = control()
    train(idle, busy)
    assert lag.wants_alone(0, 1) is waits
    assert len(said) == waits


def test_runs_ahead_again_once_cores_are_idle_and_says_it_once():
    """A first epoch that fills a cache keeps all cores busy; those after it do not."""
    lag, idle, said = control()
    train(idle, 1.9)
    assert lag.wants_alone(0, 1)
    assert lag.wants_alone(1, 1)
    train(idle, 1.0)
    assert not lag.wants_alone(2, 1)
    train(idle, 1.9)
    assert lag.wants_alone(3, 1)
    assert said == [
        "validating in step with the training from epoch 1 on until 0.5 cores are idle: "
        + str(Reason.of("overlap-slow", "the training leaves 0.10 of a core idle"))
    ]


@pytest.mark.parametrize(
    ("streamed", "splits", "waits"), [(False, 1, True), (False, 4, False), (True, 1, True), (True, 4, True)]
)
def test_parts_of_a_batch_in_memory_bear_a_validation_beside_them(streamed, splits, waits):
    lag, idle, _ = control(streamed=streamed)
    train(idle, 1.9)
    assert lag.wants_alone(0, splits) is waits


def test_epochs_that_are_rolled_back_end_running_ahead():
    lag, _, said = control()
    for _ in range(2):
        lag.delivered(rolled_back=True)
    assert not said
    for _ in range(2):
        lag.delivered(rolled_back=True)
    (message,) = said
    first = "validating in step with the training from now on: running ahead has not paid: 3 of the last 3"
    assert message.startswith(first)


def test_where_running_ahead_is_required_that_is_an_error():
    lag, *_ = control(required=True)
    for _ in range(2):
        lag.delivered(rolled_back=True)
    with pytest.raises(OverlapError, match=r"(?s)3 of the last 3 epochs were rolled back\n.*#overlap-slow"):
        lag.delivered(rolled_back=True)


@pytest.mark.parametrize(("stops", "epochs"), [(True, 9), (False, 1)])
def test_a_training_that_ends_or_was_stopped_inside_an_epoch_waits_for_no_core(monkeypatch, stops, epochs):
    """Nothing is trained any more that a validation could slow down."""
    monkeypatch.setattr(IdleCores, "left", property(lambda _: 0.1))
    monkeypatch.setattr(Deliveries, "ready", lambda _: False)
    policy = ValidationPolicy(workers=1, on_change="continue")
    trainer = Trainer(sequential(), validation=policy, execution=ExecutionPlan(batch_splits=1))
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(trainer.model, "stop_training", stops)
    )
    trainer.fit(*arrays(), epochs=epochs, validation_data=arrays(40, 1), verbose=0, callbacks=[stop])
    assert not [message for message in trainer.messages if "of a core idle" in message]


@pytest.mark.parametrize(
    ("cores", "busy", "idle"),
    [(2, 1.0, 1), (2, 1.9, 1), (2, 0.4, 2), (16, 1.2, 15), (16, 15.7, 1), (16, 40.0, 1), (1, 1.0, 1)],
)
def test_idle_cores_are_what_training_calls_leave_and_never_none(cores, busy, idle):
    result = IdleCores(cores)
    train(result, busy)
    assert result.count == idle


def test_short_calls_are_added_up_and_old_ones_forgotten():
    cores, counts = IdleCores(8), []
    for calls, wall_s, busy in ((9, 0.001, 6), (1, 0.0011, 5.5), (5, 0.2, 8), (3, 0.2, 2)):
        for _ in range(calls):
            cores.observe(wall_s, busy * wall_s)
        counts.append(cores.count)
    assert counts == [4, 2, 1, 6]
