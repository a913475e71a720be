"""Parts of a `fit` on their own: a feed, a loop that makes no real steps, and deliveries to no callbacks."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import keras
import numpy as np

from overlap_train import ValidationPolicy
from overlap_train._callbacks.delivery import Outcome
from overlap_train._callbacks.late import EpochHooks
from overlap_train._data.cursor import Cursor
from overlap_train._data.iterator_feed import make_feed
from overlap_train._fit.course import Course, Ledger
from overlap_train._fit.deliveries import Deliveries
from overlap_train._fit.epoch_training import EpochTraining
from overlap_train._fit.interrupts import Interrupts
from overlap_train._fit.lag import LagControl
from overlap_train._keras.data import recognize
from overlap_train._snapshot import Snapshot, Values
from overlap_train._training.loops import Loop, StepsDone
from overlap_train._training.step import MetricsReader
from overlap_train._validation.backlog import Backlog
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.recorder import Accounts, SpanRecorder
from overlap_train.parallel.hosts import SingleHost
from tests.validation.runners import EndedByTest, suite_of

STEPS = 4
VALUES = Values((), (), (), ())


def cursor(**options) -> Cursor:
    """Returns the beginning of data with STEPS batches."""
    x = np.zeros((2 * STEPS, 1), "float32")
    feed = make_feed(recognize(x, x, batch_size=2, shuffle=False), hold_in_memory=lambda size: True)
    return Cursor(feed, None, **options)


def asked(name: str | None = None) -> Interrupts:
    """Returns the signals of a fit that none handles, of which one of this name has come."""
    interrupts = Interrupts()
    interrupts.received = name
    return interrupts


def ledger(epochs=9) -> Ledger:
    return Ledger(SpanRecorder(), Accounts(), Course(epochs, 0))


def snapshot_at(epoch: int, position, values: Values = VALUES) -> Snapshot:
    return Snapshot(epoch, (epoch + 1) * STEPS, values, position)


class Counts(Loop):
    """Makes steps that do nothing."""

    name = "counts"

    def run(self, cursor, max_steps):
        cursor.advance(max_steps)
        return StepsDone(max_steps, logs={"loss": 1.0})


def hooks_of(callbacks, model=None) -> EpochHooks:
    """Returns hooks that are called at once."""
    return EpochHooks(model or keras.Model(), callbacks, None)


class Delivers:
    """A delivery to no callbacks; tells what the test says that they did."""

    def __init__(self):
        self.delivered = []
        self.outcomes = {}
        self.gone_back = []

    def deliver(self, snapshot, train_logs, results, *, stops, trained_on, ended, begin_next):
        self.delivered.append((snapshot.epoch, trained_on))
        logs = {**train_logs, **{f"val_{name}": v for r in results.values() for name, v in r.metrics.items()}}
        outcome = Outcome(logs, values=VALUES, results=results, stop=stops)
        outcome = dataclasses.replace(outcome, **self.outcomes.get(snapshot.epoch, {}))
        ended(outcome)
        return outcome

    def go_back_to_draws(self, snapshot):
        pass

    def go_back(self, snapshot):
        self.gone_back.append(snapshot.epoch)

    @property
    def epochs(self):
        return [epoch for epoch, _ in self.delivered]


class Checkpoints:
    """A resumer that notes what it is told to write."""

    def __init__(self):
        self.inside_at, self.written = None, []

    def steps_left(self, step):
        return None

    def due_inside(self, step):
        return step == self.inside_at

    def inside(self, point, values, callbacks):
        self.written.append(point)

    def delivered(self, point, values, callbacks, *, last, trained):
        self.written.append((point, last))


def training_of(model, deliveries, **parts) -> EpochTraining:
    """Returns what trains epochs, in calls that make no real steps."""
    defaults = dict(
        step=SimpleNamespace(metrics=MetricsReader(lambda: {"loss": 1.0}, eager=True), own_logs=False),
        loop=Counts(),
        pace=SimpleNamespace(steps=lambda: 2, step_s=None, observe=lambda *_: None),
        idle=SimpleNamespace(count=1, observe=lambda *_: None),
        interrupts=asked(),
        take_snapshot=lambda epoch: Snapshot(
            epoch, deliveries.ledger.course.step, VALUES, deliveries.cursor.state()
        ),
    )
    return EpochTraining(model=model, deliveries=deliveries, **{**defaults, **parts})


class Scene:
    """The deliveries of a fit whose epochs a test trains."""

    def __init__(self, *, epochs=9, max_lag=2, hosts=None, timeout_s=60.0, every=1, **policy):
        self.runner, self.delivery, self.resumer = EndedByTest(), Delivers(), Checkpoints()
        self.cursor, self.ledger = cursor(), ledger(epochs)
        self.course, self.progress = self.ledger.course, ProgressReporter(epochs, verbose=0)
        self.asked = []
        suite = suite_of(self.runner, every=every)
        backlog = Backlog(ValidationPolicy(**policy), suite, max_lag=max_lag)
        callbacks = keras.callbacks.CallbackList([])
        self.deliveries = Deliveries(
            callbacks=callbacks,
            hooks=hooks_of(callbacks),
            suite=suite,
            backlog=backlog,
            delivery=self.delivery,
            stepwise=None,
            lag=LagControl(backlog, self.progress.message, None, streamed=False, judges_overlap=False),
            resumer=self.resumer,
            cursor=self.cursor,
            ledger=self.ledger,
            progress=self.progress,
            hosts=hosts or SingleHost(),
            timeout_s=timeout_s,
            check_interrupted=lambda: self.asked.append(True),
        )

    def train(self, *epochs, stops=False, ends=True):
        """Trains epochs, as far as deliveries can tell."""
        for epoch in epochs:
            self.ledger.accounts.begin(epoch)
            self.cursor.begin_epoch()
            self.cursor.advance(STEPS)
            self.course.step += STEPS
            self.ledger.accounts.trained(self.ledger.span("train", 0.0, epoch), STEPS)
            self.cursor.end_epoch()
            self.course.next_epoch = epoch + 1
            snapshot = snapshot_at(epoch, self.cursor.state())
            self.deliveries.begin(snapshot, {"loss": float(epoch)}, stops=stops)
            if ends and epoch in self.runner.futures:
                self.runner.end(epoch)
