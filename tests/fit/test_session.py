"""The epochs of a fit, from the first to the last: what ends them, what builds the parts anew."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace

import keras
import pytest

from overlap_train._checkpoint.content import StartPoint, WaitingEpoch
from overlap_train._data.cursor import CursorState
from overlap_train._fit.build import FitParts
from overlap_train._fit.session import FitSession, Opening
from overlap_train._snapshot import Snapshot
from overlap_train._training.loops import StepsDone
from overlap_train.errors import HostMismatchError
from tests.fit import parts
from tests.parallel.together import on_hosts
from tests.validation.runners import EndedByTest, suite_of

kc = keras.callbacks


class Told(kc.Callback):
    """Notes the hooks, and does once what a test wants at the beginning of an epoch."""

    def __init__(self, model):
        super().__init__()
        self.set_model(model)
        self.hooks, self.does = [], {}

    def on_epoch_begin(self, epoch, logs=None):
        self.hooks.append(("begin", epoch))
        self.does.pop(epoch, lambda: None)()

    def on_train_end(self, logs=None):
        self.hooks.append(("end", logs))

    @property
    def begun(self):
        return [epoch for hook, epoch in self.hooks if hook == "begin"]


class Ended(EndedByTest):
    """Validations that end at once."""

    def start(self, snapshot):
        (future,) = super().start(snapshot)
        self.end(snapshot.epoch)
        return [future]


class Loop(parts.Counts):
    """Makes calls of two steps; before one of them a test may do something."""

    def __init__(self):
        self.before, self.calls = {}, 0
        self.halts_at = None

    def run(self, cursor, max_steps):
        self.calls += 1
        self.before.get(self.calls, lambda: None)()
        done = super().run(cursor, min(2, max_steps))
        return StepsDone(done.steps, halted=self.calls == self.halts_at, logs={"loss": float("nan")})


class Fit:
    """A session on real parts, whose loop makes no real steps."""

    def __init__(self, *, epochs=3, max_lag=0, begun=False, runner=None, resumption=None, hosts=None):
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        self.model.compile("sgd", "mse")
        self.model.stop_training = False
        self.model.make_train_function()
        self.told = Told(self.model)
        self.scene = parts.Scene(epochs=epochs, max_lag=max_lag, hosts=hosts)
        self.runner = self.scene.runner if runner is None else runner
        self.scene.deliveries.suite._sets[""] = suite_of(self.runner)._sets[""]
        self.loop, self.changed, self.renewed, self.interrupts = Loop(), None, 0, parts.asked()
        callbacks = kc.CallbackList([self.told], model=self.model)
        self.scene.deliveries.callbacks, self.scene.deliveries.hooks = callbacks, parts.hooks_of(callbacks)
        self.resumption = resumption
        settings = SimpleNamespace(
            model=self.model, hosts=self.scene.deliveries.hosts, scope=contextlib.nullcontext
        )
        opening = Opening(0, begun, self.model.train_function)
        self.session = FitSession(settings, self.parts(), opening, self.renew)
        self.course, self.messages = self.scene.course, self.scene.progress.messages

    def parts(self):
        scene = self.scene
        training = parts.training_of(self.model, scene.deliveries, loop=self.loop, interrupts=self.interrupts)
        return FitParts(
            state=None,
            training=training,
            deliveries=scene.deliveries,
            grounds=SimpleNamespace(changed=lambda: self.changed),
            sources=SimpleNamespace(read=lambda epoch, waiting: True),
            resumption=self.resumption,
        )

    def renew(self, training=None):
        self.renewed += 1
        self.changed = None
        return self.parts()

    def end_what_is_waited_for(self):
        """Has a validation end when the training waits for it, and not before."""
        self.scene.deliveries.check_interrupted = lambda: [
            self.runner.end(epoch) for epoch, future in self.runner.futures.items() if not future.done()
        ]

    def run(self):
        self.scene.resumer.wait = lambda: None
        self.scene.deliveries.callbacks.on_train_begin()
        self.session.run()
        return self.session.ended


@pytest.fixture
def fit():
    return Fit(runner=Ended())


def test_every_epoch_is_trained_validated_and_delivered(fit):
    assert fit.run() == "completed"
    last = {"loss": 1.0, "val_loss": 0.5}
    assert fit.told.hooks == [("begin", 0), ("begin", 1), ("begin", 2), ("end", last)]
    assert fit.course.logs == dict.fromkeys(range(3), last)
    assert (fit.course.step, fit.loop.calls) == (12, 6)
    assert fit.scene.delivery.epochs == [0, 1, 2]
    assert [account.steps for account in fit.scene.ledger.accounts.closed()] == [4, 4, 4]


def test_an_epoch_whose_hooks_have_been_called_is_not_begun_twice():
    fit = Fit(runner=Ended(), begun=True, epochs=2)
    fit.run()
    assert fit.told.hooks[0] == ("begin", 1)


def test_a_stop_inside_an_epoch_ends_it_and_the_training(fit):
    fit.loop.before[3] = lambda: setattr(fit.model, "stop_training", True)
    assert fit.run() == "stopped"
    assert (fit.course.step, sorted(fit.course.logs)) == (6, [0, 1])


def test_a_rollback_trains_the_epochs_after_it_again():
    fit = Fit(max_lag=1)
    fit.scene.delivery.outcomes[0] = {"rolled_back": True, "reason": "a callback set learning_rate"}
    fit.end_what_is_waited_for()
    fit.loop.before[3] = lambda: fit.runner.end(0)  # while epoch 1 is trained
    assert fit.run() == "completed"
    assert fit.told.begun == [0, 1, 1, 2]
    assert fit.course.step == 12


@pytest.mark.parametrize("guarded", [True, False])
def test_a_loss_that_is_not_finite_is_shown_to_its_guard_alone(guarded):
    fit = Fit(runner=Ended())
    seen = []
    guard = kc.TerminateOnNaN() if guarded else kc.LambdaCallback()
    guard.on_train_batch_end = lambda batch, logs=None: seen.append((batch, logs))
    fit.scene.deliveries.callbacks.callbacks.append(guard)
    fit.loop.halts_at = 3
    fit.session._parts.training.calls_batches = False
    assert fit.run() == "completed"
    assert [batch for batch, _ in seen] == [1] * guarded
    assert guarded is bool(seen and seen[0][1].keys() == {"loss"})


def test_a_first_signal_delivers_what_is_finished_and_gives_up_the_rest():
    fit = Fit(max_lag=2)
    fit.loop.before[5] = lambda: (fit.runner.end(0), setattr(fit.interrupts, "received", "SIGTERM"))
    fit.scene.deliveries.deliver_until = lambda deadline_s: fit.scene.deliveries.deliver_ready()
    assert fit.run() == "interrupted by SIGTERM"
    said = "interrupted by SIGTERM: delivering what is finished within 5 s; a second signal ends it at once"
    assert fit.messages == [said]
    assert sorted(fit.course.logs) == [0]
    assert fit.runner.futures[1].cancelled()
    assert len(fit.scene.deliveries) == 0
    *_, point = fit.scene.resumer.written
    assert (point.epoch, point.position.within, point.position.steps) == (2, True, 2)
    assert [waiting.snapshot.epoch for waiting in point.undelivered] == [1]
    assert fit.told.hooks[-1] == ("end", {"loss": 1.0, "val_loss": 0.5})


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (
            lambda fit: fit.model.make_train_function(force=True),
            "a callback rebuilt the train function; the step is traced again",
        ),
        (lambda fit: setattr(fit, "changed", "it listens now"), "built again, because it listens now"),
    ],
)
def test_what_a_callback_changes_has_all_built_anew_once(fit, does, message):
    fit.told.does[1] = lambda: does(fit)
    fit.run()
    assert (fit.renewed, fit.messages) == (1, [message])
    assert fit.scene.delivery.epochs == [0, 1, 2]


def test_a_train_function_taken_away_is_the_error_of_keras(fit):
    fit.told.does[1] = lambda: fit.model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="'NoneType' object is not callable: a callback has compiled"):
        fit.run()


def test_before_that_the_epochs_that_wait_are_delivered_and_may_roll_back():
    fit = Fit(max_lag=1)
    fit.scene.delivery.outcomes[0] = {"rolled_back": True, "reason": "a callback set learning_rate"}

    fit.end_what_is_waited_for()
    fit.told.does[1] = lambda: setattr(fit, "changed", "it listens now")
    fit.run()
    assert fit.told.begun == [0, 1, 1, 2]
    assert fit.messages[0].startswith("back to the end of epoch 1")
    assert fit.messages[1:] == ["built again, because it listens now"]


@pytest.mark.parametrize("provisional", [False, True])
def test_a_provisional_validation_is_built_anew_when_it_is_due(provisional):
    fit = Fit(runner=Ended())
    fit.session._parts = dataclasses.replace(fit.session._parts, is_provisional=provisional)
    fit.run()
    assert fit.renewed == provisional
    assert fit.messages == []


class Resumes:
    """Starts from a checkpoint of where a test says."""

    def __init__(self, point):
        self.point = point

    def start(self, state, cursor, callbacks, begin_epoch):
        if self.point is not None:
            cursor.restore(self.point.position)
        return self.point


def point(epoch, *, within=False, stopped=False, undelivered=(), max_lag=1):
    steps = 2 if within else 0
    position = CursorState(epoch + within, steps, within, epoch, within, steps)
    return StartPoint(epoch, 4 * epoch + steps, stopped, {"loss": 3.0}, max_lag, position, undelivered)


def test_without_a_checkpoint_it_begins_at_the_beginning():
    fit = Fit(runner=Ended(), resumption=Resumes(None), epochs=1)
    assert fit.run() == "completed"
    assert fit.messages == []


def test_from_a_checkpoint_it_goes_on_behind_its_epoch():
    fit = Fit(runner=Ended(), max_lag=2, resumption=Resumes(point(2)))
    fit.run()
    assert fit.messages == ["resumed after epoch 2"]
    assert fit.told.hooks[0] == ("begin", 2)
    assert fit.course.logs[1] == {"loss": 3.0}
    assert (fit.course.step, fit.course.first_epoch) == (12, 2)
    assert fit.scene.deliveries.backlog.max_lag == 1


@pytest.mark.parametrize("stopped", [False, True])
def test_a_training_that_is_over_says_so(stopped):
    fit = Fit(runner=Ended(), resumption=Resumes(point(2, stopped=stopped)), epochs=3 if stopped else 2)
    fit.run()
    why = "a callback had stopped it" if stopped else "all its epochs are done"
    assert fit.messages == [
        "resumed after epoch 2",
        f"nothing is left to train: {why}; another directory starts afresh",
    ]


def test_inside_an_epoch_it_goes_on_there_without_its_first_hook():
    fit = Fit(runner=Ended(), resumption=Resumes(point(1, within=True)))
    fit.run()
    assert fit.messages[0] == "resumed inside epoch 2, after 2 of its steps"
    assert fit.told.begun == [2]
    assert fit.course.step == 12


def test_epochs_that_waited_are_validated_again_and_come_first():
    position = CursorState(1, 0, False, 1)
    waiting = WaitingEpoch(Snapshot(0, 4, parts.VALUES, position), {"loss": 2.0})
    fit = Fit(runner=Ended(), resumption=Resumes(point(1, undelivered=(waiting,))))
    fit.run()
    assert fit.scene.delivery.epochs == [0, 1, 2]
    assert fit.course.logs[0] == {"loss": 2.0, "val_loss": 0.5}
    assert -1 in fit.course.logs  # of the epoch before, which the checkpoint tells


def test_a_training_that_had_been_stopped_trains_no_further():
    fit = Fit(runner=Ended(), resumption=Resumes(point(1, stopped=True)))
    assert fit.run() == "stopped"
    assert (fit.loop.calls, fit.model.stop_training) == (0, True)


@pytest.mark.parametrize(("max_lag", "refused"), [(0, False), (1, True)])
def test_several_hosts_build_nothing_anew_and_refuse_what_would_be_noticed(max_lag, refused):
    def work(host):
        fit = Fit(runner=Ended(), hosts=host, max_lag=max_lag, epochs=1)
        fit.changed = "it listens now"
        ended = fit.run()
        assert fit.renewed == 0
        return ended

    own, other = on_hosts(work)
    if not refused:
        assert (own, other) == ("completed", "completed")
        return
    assert isinstance(own, ValueError)
    assert str(own).startswith("it listens now, while the training on several hosts runs ahead")
    assert isinstance(other, HostMismatchError)
