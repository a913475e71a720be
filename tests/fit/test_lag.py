"""Running ahead waits where cores are busy, where it does not pay, and where it is rolled back too often."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import pytest

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from overlap_train._fit.deliveries import Deliveries
from overlap_train._fit.lag import IdleCores, LagControl, OverlapJudge
from overlap_train._support.reasons import Reason
from overlap_train.records import Span
from tests.networks import arrays
from tests.pools import sequential

CORES = 2


def control(*, judges_overlap=True, streamed=True, max_lag=1):
    """Returns a control, what it reads the idle cores from, and what it says."""
    idle, said = IdleCores(CORES), []
    backlog = SimpleNamespace(max_lag=max_lag)
    lag = LagControl(backlog, said.append, idle, streamed=streamed, judges_overlap=judges_overlap)
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


def test_does_not_wait_before_anything_is_known():
    lag, _, said = control()
    assert lag.wants_alone(0, 1) is False
    assert not said


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
        "validating in step with the training from epoch 1 on while that is below 0.5: "
        + str(Reason.of("overlap-slow", "the training leaves 0.10 of a core idle"))
    ]


@pytest.mark.parametrize("options", [{"judges_overlap": False}, {"max_lag": 0}])
def test_does_not_ask_where_it_does_not_matter(options):
    lag, idle, said = control(**options)
    train(idle, 2.0)
    assert lag.wants_alone(0, 1) is False
    assert not said


@pytest.mark.parametrize(
    ("streamed", "splits", "waits"), [(False, 1, True), (False, 4, False), (True, 1, True), (True, 4, True)]
)
def test_parts_of_a_batch_in_memory_bear_a_validation_beside_them(streamed, splits, waits):
    lag, idle, _ = control(streamed=streamed)
    train(idle, 1.9)
    assert lag.wants_alone(0, splits) is waits


IN_STEP = "validating in step with the training from epoch {} on: "
SLOWER = IN_STEP + str(Reason.of("overlap-slow", "the training slows down by what a validation takes"))


@pytest.fixture
def fit(monkeypatch):
    """Trains where running ahead does not pay; each epoch is delivered as late as its lag allows.

    Returns what the fit says of that.
    """
    monkeypatch.setattr(OverlapJudge, "pays", lambda _: False)
    monkeypatch.setattr(Deliveries, "ready", lambda _: False)

    def run(epochs, *, callbacks=(), resume=None, **policy):
        trainer = Trainer(sequential(), validation=ValidationPolicy(workers=1, **policy))
        data = dict(validation_data=arrays(40, 1), callbacks=list(callbacks), resume=resume)
        trainer.fit(*arrays(), epochs=epochs, verbose=0, **data)
        return [message for message in trainer.messages if "validating in step" in message]

    return run


class StopsAtBatch(keras.callbacks.Callback):
    """Stops the training inside an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.last, self.epoch = epoch, None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == self.last:
            self.model.stop_training = True


class StopsAtEnd(StopsAtBatch):
    """Stops the training at an epoch's end."""

    def on_train_batch_end(self, batch, logs=None):
        pass

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.last:
            self.model.stop_training = True


@pytest.mark.parametrize(("epochs", "said"), [(1, []), (2, []), (3, [SLOWER.format(2)])])
@pytest.mark.default_options
def test_the_end_of_running_ahead_is_told_only_if_an_epoch_follows(fit, epochs, said):
    assert fit(epochs) == said


@pytest.mark.parametrize("on_change", ["rollback", "continue"])
@pytest.mark.parametrize("stops", [StopsAtEnd(0), StopsAtBatch(1)])
def test_the_end_of_running_ahead_is_not_told_of_a_training_that_is_stopped(fit, on_change, stops):
    """Epochs that were asked for, and that do not come."""
    said = fit(9, callbacks=[stops], on_change=on_change)
    assert not [message for message in said if message.startswith(IN_STEP.partition("{")[0])]


def test_epochs_that_are_rolled_back_end_running_ahead_only_if_another_is_trained():
    lag, _, said = control()
    for _ in range(3):
        lag.delivered(rolled_back=True)
    assert not said
    lag.waits_for(4)
    lag.waits_for(5)
    assert len(said) == 1
    assert said[0].startswith(IN_STEP.format(5) + "running ahead has not paid: 3 of the last 3 epochs were")


def test_a_resumed_training_says_that_it_goes_on_in_step_if_it_goes_on(fit, tmp_path):
    fit(2, max_lag=0, resume=tmp_path)
    assert fit(2, resume=tmp_path) == []
    (said,) = fit(4, resume=tmp_path)
    assert said.startswith(IN_STEP.format(3))
    assert "the training that wrote the checkpoint waited, too" in said


def test_a_training_that_was_stopped_inside_its_last_epoch_waits_for_no_core(monkeypatch):
    """Nothing is trained any more that a validation could slow down."""
    monkeypatch.setattr(IdleCores, "left", property(lambda _: 0.1))
    monkeypatch.setattr(Deliveries, "ready", lambda _: False)
    policy = ValidationPolicy(workers=1, on_change="continue")
    trainer = Trainer(sequential(), validation=policy, execution=ExecutionPlan(batch_splits=1))
    trainer.fit(*arrays(), epochs=9, validation_data=arrays(40, 1), verbose=0, callbacks=[StopsAtBatch(0)])
    assert not [message for message in trainer.messages if "of a core idle" in message]


def span(name, start_s, end_s):
    return Span(name, "thread", start_s, end_s)


def epoch(beside_s):
    """Returns five calls of 100 steps, two of them beside a validation, the others of one second."""
    calls, now = [], 0.0
    for duration_s in (beside_s, beside_s, 1.0, 1.0, 1.0):
        calls.append((span("train", now, now + duration_s), 100))
        now += duration_s
    return calls, [span("validate", 0.0, 2 * beside_s)]


def judge(*beside_s, alone_s=1.0, cpu_s=None):
    """Returns a judge of epochs whose calls beside a validation took so long, and of one alone."""
    result = OverlapJudge()
    for seconds in beside_s:
        result.observe_beside(*epoch(seconds))
    if alone_s is not None:
        result.observe_alone(alone_s, cpu_s)
    return result


@pytest.mark.parametrize(
    ("beside_s", "cpu_s", "pays"),
    [
        pytest.param([1.0, 1.0], None, True, id="on idle cores"),
        # Two seconds beside it at two thirds of the speed: as much is lost as it would take alone.
        pytest.param([1.5, 1.5], None, False, id="on busy cores"),
        pytest.param([1.48, 1.48], None, True, id="4 % hidden"),
        pytest.param([1.49, 1.49], None, False, id="2 % hidden: below the least share"),
        pytest.param([1.1, 1.1, 1.1, 1.1, 50.0], None, True, id="one stalled epoch does not decide"),
        pytest.param([9.0], None, None, id="too few epochs"),
        # Where others use the machine, calls beside a validation that hardly computes are slower by chance.
        pytest.param([3.0, 3.0], 0.5, True, id="half a second of processor time"),
        pytest.param([3.0, 3.0], 0.95, False, id="all of it"),
        pytest.param([3.0, 3.0], None, False, id="processor time unknown"),
    ],
)
def test_overlap_is_judged_by_what_a_validation_costs_alone_and_beside_the_training(beside_s, cpu_s, pays):
    assert judge(*beside_s, cpu_s=cpu_s).pays() is pays


def test_asks_for_one_validation_alone_and_judges_then():
    result = judge(9.0, 9.0, alone_s=None)
    assert (result.wants_alone, result.pays()) == (True, None)
    result.observe_alone(1.0)
    assert (result.wants_alone, result.pays()) == (False, False)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([(span("train", 0.0, 1.0), 10)], id="no call without a validation"),
        pytest.param([(span("train", 0.0, 1.0), 0), (span("train", 1.0, 1.0), 5)], id="empty calls"),
    ],
)
def test_nothing_is_judged_without_calls_to_compare(calls):
    result = OverlapJudge(epochs=1)
    result.observe_beside(calls, [span("validate", 0.0, 2.0)])
    result.observe_alone(1.0)
    assert (result.wants_alone, result.pays()) == (False, None)


@pytest.mark.parametrize(
    ("cores", "busy", "idle"),
    [(2, 1.0, 1), (2, 1.9, 1), (2, 0.4, 2), (16, 1.2, 15), (16, 15.7, 1), (16, 40.0, 1), (1, 1.0, 1)],
)
def test_idle_cores_are_what_training_calls_leave_and_never_none(cores, busy, idle):
    result = IdleCores(cores)
    train(result, busy)
    assert result.count == idle


def test_half_of_the_cores_count_as_idle_as_long_as_nothing_is_known():
    assert [IdleCores(cores).count for cores in (1, 2, 8, 9)] == [1, 1, 4, 4]


def test_short_calls_are_added_up_and_old_ones_forgotten():
    cores, counts = IdleCores(8), []
    for calls, wall_s, busy in ((9, 0.001, 6), (1, 0.0011, 5.5), (5, 0.2, 8), (3, 0.2, 2)):
        for _ in range(calls):
            cores.observe(wall_s, busy * wall_s)
        counts.append(cores.count)
    assert counts == [4, 2, 1, 6]
