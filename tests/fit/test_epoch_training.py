"""Calls of training steps: how many steps each has, who is told of it, and what is learned from it."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import pytest

from overlap_train._fit.interrupts import Interrupted
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.parallel.hosts import SingleHost, SlowHost
from tests.fit import parts
from tests.parallel.together import on_hosts

STEPS = parts.STEPS


class Notes:
    """Notes what it is told, whatever it is."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *arguments: self.told.append((name, *arguments))

    def names(self):
        return [name for name, *_ in self.told]


class Due:
    """Something that is due after so many more steps."""

    def __init__(self, left):
        self.left, self.told = left, []

    def steps_left(self, step):
        return self.left

    def after(self, before, step, snapshot):
        self.told.append((before, step, snapshot()))


class Told(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.hooks = []

    def on_epoch_begin(self, epoch, logs=None):
        self.hooks.append(("epoch", epoch))


class ToldOfBatches(Told):
    def on_train_batch_begin(self, batch, logs=None):
        self.hooks.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.hooks.append(("end", batch, logs))


@pytest.fixture(scope="module")
def model():
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", metrics=["mae"])
    return made


def training(model, callback=None, *, steps=50, group=1, idle=None, name=None, **deliveries):
    """Returns what trains epochs; a signal of this `name` has come."""
    callback = callback or Told()
    callbacks = keras.callbacks.CallbackList([callback], model=model)
    model.steps_per_execution = group
    model.stop_training = False
    defaults = dict(
        callbacks=callbacks,
        hooks=parts.hooks_of(callbacks, model),
        cursor=parts.cursor(),
        suite=SimpleNamespace(idle=True, admit_beside=lambda most: None),
        stepwise=None,
        resumer=None,
        lag=Notes(),
        ledger=parts.ledger(),
        progress=ProgressReporter(9, verbose=0),
        hosts=SingleHost(),
    )
    deliveries = SimpleNamespace(**{**defaults, **deliveries})
    parts_of_fit = dict(
        pace=SimpleNamespace(steps=lambda: steps, step_s=None, observe=lambda *_: None),
        interrupts=parts.asked(name),
        take_snapshot=lambda epoch: f"snapshot of {epoch}",
    )
    if idle is not None:
        parts_of_fit["idle"] = idle
    return parts.training_of(model, deliveries, **parts_of_fit)


def begun(*arguments, epoch=0, **options):
    made = training(*arguments, **options)
    made.begin_epoch(epoch, begun=False)
    return made


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_epoch_that_has_begun_elsewhere_is_not_begun_again(model, has_begun):
    told = Told()
    made = training(model, told)
    model.metrics[0].update_state(3.0)
    made.begin_epoch(2, begun=has_begun)
    assert told.hooks == ([] if has_begun else [("epoch", 2)])
    assert (float(model.metrics[0].result()) == 0.0) is not has_begun
    assert made.cursor.within
    model.reset_metrics()


@pytest.mark.parametrize(
    ("callback", "stopped", "steps"),
    [
        pytest.param(None, False, 7, id="as the pace says"),
        pytest.param(ToldOfBatches(), False, 3, id="a group for hooks of batches"),
        pytest.param(None, True, 3, id="a group where the training is stopped"),
    ],
)
def test_how_many_steps_a_call_has(model, callback, stopped, steps):
    made = training(model, callback, group=3, steps=7)
    model.stop_training = stopped
    assert made.agree_on_steps() == steps


def test_an_interrupted_training_makes_no_further_call(model):
    with pytest.raises(Interrupted):
        training(model, name="SIGINT").agree_on_steps()


def test_several_hosts_make_as_many_steps_as_the_chief_wants_and_stop_together(model):
    def agreed(host, name=None):
        return training(model, hosts=host, steps=3 - host.index, name=name).agree_on_steps()

    assert on_hosts(agreed) == [3, 3]
    errors = on_hosts(lambda host: agreed(host, "SIGINT" if host.index else None))
    assert [type(error) for error in errors] == [Interrupted, Interrupted]


@pytest.mark.parametrize(
    ("steps", "stepwise", "resumer", "made"),
    [
        (50, None, None, STEPS),
        (3, None, None, 3),
        (50, 2, 3, 2),
        (50, 3, 1, 1),
        (1, 3, 2, 1),
        (50, 0, 0, STEPS),
    ],
)
def test_a_call_ends_where_something_is_due(model, steps, stepwise, resumer, made):
    made_of = {
        name: Due(left) for name, left in (("stepwise", stepwise), ("resumer", resumer)) if left is not None
    }
    call = begun(model, **made_of)
    assert call.run_call(0, steps).steps == made
    assert call.ledger.course.step == call.cursor.steps == made


def test_whoever_is_told_of_batches_gets_whole_groups(model):
    """Though a validation is due inside one: Keras's groups of steps are never divided."""
    call = begun(model, ToldOfBatches(), group=3, stepwise=Due(1))
    assert call.run_call(0, 3).steps == 3


def test_the_hooks_of_a_batch_have_the_numbers_of_keras(model):
    told = ToldOfBatches()
    call = begun(model, told, group=3)
    for steps in (3, 1):
        call.begin_call(0, begun=False)
        call.run_call(0, steps)
    assert told.hooks == [
        ("epoch", 0),
        ("begin", 0),
        ("end", 2, {"loss": 1.0}),
        ("begin", 3),
        ("end", 5, {"loss": 1.0}),
    ]


def test_a_batch_that_has_begun_is_not_begun_again(model):
    told = ToldOfBatches()
    begun(model, told).begin_call(0, begun=True)
    assert told.hooks == [("epoch", 0)]


def test_a_validation_inside_an_epoch_is_told_of_the_steps_and_may_have_a_snapshot(model):
    due = Due(2)
    call = begun(model, stepwise=due)
    call.ledger.course.step = 10
    call.run_call(0, 50)
    assert due.told == [(10, 12, "snapshot of 0")]


def test_the_first_call_which_traces_teaches_nothing(model):
    seen = []
    idle = SimpleNamespace(count=1, observe=lambda *seconds: seen.append(seconds))
    call = begun(model, idle=idle)
    call.run_call(0, 1)
    assert (seen, call.deliveries.lag.told, call.warm) == ([], [], True)
    call.run_call(0, 1)
    assert len(seen) == 1
    call.deliveries.suite.idle = False
    call.run_call(0, 1)
    assert len(seen) == 1  # what workers take is not what the training leaves


def test_the_lag_learns_from_calls_after_the_first_epoch(model):
    call = begun(model)
    call.warm = True
    call.run_call(0, 1)
    assert call.deliveries.lag.told == []
    call.begin_epoch(1, begun=False)
    call.run_call(1, 2)
    ((name, span, steps),) = call.deliveries.lag.told
    assert (name, span.epoch, span.details, steps) == ("trained", 1, {"steps": 2}, 2)


def test_steps_and_seconds_go_to_the_accounts(model):
    call = begun(model)
    call.run_call(0, 3)
    account = call.ledger.accounts.close(0)
    (span,) = call.ledger.recorder.spans()
    assert (account.steps, account.trained_s) == (3, span.duration_s)


def test_workers_are_let_on_beside_a_call_as_cores_are_idle(model):
    admitted = []
    suite = SimpleNamespace(idle=True, admit_beside=admitted.append)
    begun(model, suite=suite, idle=SimpleNamespace(count=3)).run_call(0, 1)
    assert admitted == [3]


@pytest.mark.parametrize(
    ("own", "last", "expected"),
    [
        (True, {"loss": 2.0, "norm": 3.0}, {"loss": 2.0, "norm": 3.0}),
        (True, {"loss": 2.0}, {"loss": 1.0}),
        (False, {"loss": 2.0, "norm": 3.0}, {"loss": 1.0}),
    ],
)
def test_logs_of_a_steps_own_are_those_of_the_epoch(model, own, last, expected):
    call = training(model)
    call.step.own_logs = own
    call.ledger.course.step = 1
    assert call.logs(last) == expected


class Slow(SingleHost):
    def slow_host(self, trained_s):
        return SlowHost(3, 1.25) if trained_s else None


def test_the_host_that_the_others_waited_for_is_named(model):
    call = begun(model, hosts=Slow())
    call.name_slow_host(0)
    assert call.progress.messages == []
    call.run_call(0, 1)
    call.name_slow_host(0)
    assert call.progress.messages == ["epoch 1: the others waited 1.25 s for host 3"]
    account = call.ledger.accounts.close(0)
    assert (account.slow_host, account.slow_host_s) == (3, 1.25)


def test_waits_are_counted_from_an_epochs_first_call_but_for_the_one_that_compiles(model):
    marked = []
    hosts = SingleHost()
    hosts.begin_waits = lambda: marked.append(True)
    call = begun(model, hosts=hosts)
    assert len(marked) == 1
    call.run_call(0, 1)
    call.run_call(0, 1)
    assert len(marked) == 2
