"""The training of epochs: compiled calls of many steps, and the hooks of batches around them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._callbacks.late import EpochHooks
from overlap_train._callbacks.listeners import listeners
from overlap_train._checkpoint.resume import Resumer
from overlap_train._data.cursor import Cursor
from overlap_train._fit.course import Ledger
from overlap_train._fit.interrupts import Interrupted, Interrupts
from overlap_train._fit.lag import IdleCores, LagControl
from overlap_train._keras import data as keras_data
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import Snapshot
from overlap_train._training.loops import Loop, Pace, StepsDone
from overlap_train._training.step import Step
from overlap_train._validation.backlog import StepValidations
from overlap_train._validation.suite import ValidationSuite
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.parallel.hosts import Hosts
from overlap_train.records import Span

__all__ = ["EpochTraining"]


@dataclass
class EpochTraining:
    """Trains epochs call by call. On the training thread.

    `warm` says whether a call has been made, which traces the loop.
    """

    model: keras.Model
    callbacks: Any
    hooks: EpochHooks
    step: Step
    loop: Loop
    pace: Pace
    cursor: Cursor
    suite: ValidationSuite
    stepwise: StepValidations | None
    resumer: Resumer | None
    lag: LagControl
    idle: IdleCores
    ledger: Ledger
    progress: ProgressReporter
    hosts: Hosts
    interrupts: Interrupts
    take_snapshot: Callable[[int], Snapshot]
    warm: bool = False

    def __post_init__(self) -> None:
        self._course = self.ledger.course
        self._group = keras_training.steps_per_execution(self.model)
        # On several hosts others than the chief list few callbacks, and make the same calls.
        self._batch_hooks = self.hosts.any(any(map(wants_train_batches, listeners(self.callbacks))))

    @property
    def calls_batches(self) -> bool:
        """Whether the hooks of batches are called."""
        return self._batch_hooks

    def begin_epoch(self, epoch: int, *, begun: bool) -> None:
        """Calls the hooks of an epoch's beginning, unless they have been called, and begins its data."""
        self.ledger.accounts.begin(epoch)
        self.progress.epoch_begin(epoch)
        if not begun:
            self.hooks.epoch_begin(epoch)
        self.cursor.begin_epoch()
        self.hosts.begin_waits()

    def agree_on_steps(self) -> int:
        """Returns how many steps the next call is to have: on several hosts, as many as the chief wants.

        Raises `Interrupted` if any of them has been asked to stop.
        """
        grouped = self._batch_hooks or self.model.stop_training
        steps = self._group if grouped else self.pace.steps()
        asked = self.interrupts.received is not None
        if self.hosts.count > 1:
            table = self.hosts.numbers([self._capped(steps), asked])  # checkpoints are the chief's
            stop, steps = bool(table[:, 1].any()), int(table[0, 0])
        else:
            stop = asked
        if stop:
            raise Interrupted
        return steps

    def begin_call(self, epoch: int, *, begun: bool) -> bool:
        """Calls the hook of a batch's beginning, where somebody listens and it has not been called.

        Returns whether the epoch goes on.
        """
        if not self._batch_hooks or begun:
            return True
        return self._goes_on(lambda: self.hooks.batch_begin(epoch, self.cursor.steps), self._group)

    def cut(self) -> None:
        """Ends the epoch before its first step: a hook has said that there is no data."""
        self.cursor.cut(self._group)

    def run_call(self, epoch: int, steps: int) -> StepsDone:
        """Makes one compiled call of at most so many steps."""
        first = self.cursor.steps
        undisturbed = self.warm and self.suite.idle
        warm = self.warm
        self.suite.admit_beside(self.idle.count)
        most = self._capped(steps)
        self.interrupts.expect(2 * most * (self.pace.step_s or 0.0))
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        self.loop.close()  # which waits for what prepares it
        done = self.loop.run(self.cursor, most)
        span = self.ledger.span("train", start_s, epoch, steps=done.steps)
        if undisturbed:
            self.idle.observe(span.duration_s, time.process_time() - start_cpu_s)
        if not self.warm:
            self.warm = True
            self.hosts.begin_waits()  # in the first call hosts wait for whoever compiles longest
        if warm and epoch > self._course.first_epoch:  # in which the rest is traced
            self.lag.trained(span, done.steps)
        self._count(done, span)
        if self._batch_hooks and done.steps:
            last = first + self._group - 1
            if not self._goes_on(lambda: self.hooks.batch_end(epoch, last, done.logs)):
                done = dataclasses.replace(done, exhausted=True)
        if self.stepwise is not None and done.steps:
            step = self._course.step
            self.stepwise.after(step - done.steps, step, lambda: self.take_snapshot(epoch))
        return done

    def show(self, epoch: int) -> None:
        """Shows how far the epoch is."""
        read = (dict) if self.step.metrics.by_python else self.step.metrics
        self.progress.steps_done(epoch, self.cursor.steps, lambda: keras_metrics.python_logs(read()))

    def logs(self, last: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the logs of the epoch that has been trained.

        Those of its last step are the epoch's where the step makes logs of its own.
        """
        if not self._course.step:
            return {}  # Keras has no logs before the first step, and its metrics do not count
        logs = self.step.metrics()
        return last if set(last) != set(logs) and self.step.own_logs else logs

    def name_slow_host(self, epoch: int) -> None:
        """Notes which host the others waited for in an epoch, if one stands out."""
        accounts = self.ledger.accounts
        slow = self.hosts.slow_host(accounts.trained_s(epoch))
        if slow is not None:
            accounts.slow_host(epoch, slow.host, slow.seconds)
            self.progress.message(
                f"epoch {epoch + 1}: the others waited {slow.seconds:.2f} s for host {slow.host}"
            )

    def _goes_on(self, hook: Callable[[], None], steps: int = 0) -> bool:
        """Calls a hook of a batch; returns whether the epoch goes on, or ends as if the data did."""
        try:
            hook()
        except keras_data.OUT_OF_DATA:
            self.cursor.cut(steps)
            return False
        return True

    def _capped(self, steps: int) -> int:
        """Returns how many steps a call may have before something else is due."""
        most = self.cursor.most_steps()
        if most is not None:
            steps = min(steps, most)
        if self._batch_hooks:
            return steps
        for due in (self.stepwise, self.resumer):
            if due is not None:
                steps = min(steps, due.steps_left(self._course.step) or steps)
        return steps

    def _count(self, done: StepsDone, span: Span) -> None:
        self.ledger.accounts.trained(span, done.steps)
        self.pace.observe(done.steps, span.duration_s)
        self._course.step += done.steps
