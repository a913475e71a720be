"""The training of epochs: compiled calls of many steps, and the hooks of batches around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._fit.deliveries import Deliveries
from overlap_train._fit.interrupts import Interrupted, Interrupts
from overlap_train._fit.lag import IdleCores
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import Snapshot
from overlap_train._training.loops import Loop, Pace, StepsDone
from overlap_train._training.step import Step


@dataclass
class EpochTraining:
    """Trains epochs call by call, ahead of their `deliveries`. On the training thread."""

    model: keras.Model
    step: Step
    loop: Loop
    pace: Pace
    deliveries: Deliveries
    idle: IdleCores
    interrupts: Interrupts
    take_snapshot: Callable[[int], Snapshot]
    warm: bool = False  # whether a call has been made, which traces the loop

    def __post_init__(self) -> None:
        parts = self.deliveries
        self.cursor, self.hooks, self._suite = parts.cursor, parts.hooks, parts.suite
        self.ledger, self.progress, self._hosts = parts.ledger, parts.progress, parts.hosts
        self._course = self.ledger.course
        self._group = keras_training.steps_per_execution(self.model)
        # On several hosts others than the chief list few callbacks, and make the same calls.
        self.calls_batches = self._hosts.any(any(map(wants_train_batches, parts.callbacks.callbacks)))

    def begin_epoch(self, epoch: int, *, begun: bool) -> None:
        """Calls the hooks of an epoch's beginning, unless they have been called, and begins its data."""
        self.ledger.accounts.begin(epoch)
        self.progress.epoch_begin(epoch)
        if not begun:
            self._call(self.hooks.epoch_begin, epoch)
        self.cursor.begin_epoch()
        self.ledger.accounts.train(epoch)  # from here on: the first order of rows is part of the preparation
        self._hosts.begin_waits()

    def agree_on_steps(self) -> int:
        """Returns how many steps the next call has; raises `Interrupted` after a signal on any host."""
        grouped = self.calls_batches or self.model.stop_training
        steps = self._group if grouped else self.pace.steps()
        interrupted = self.interrupts.received is not None
        if self._hosts.count > 1:
            table = self._hosts.numbers([self._capped(steps), interrupted])  # checkpoints are the chief's
            interrupted, steps = bool(table[:, 1].any()), int(table[0, 0])
        if interrupted:
            raise Interrupted
        return steps

    def begin_call(self, epoch: int, *, begun: bool) -> None:
        """Calls the hook of a batch's beginning, unless it has `begun`."""
        if self.calls_batches and not begun:
            self._call(self.hooks.batch, epoch, "on_train_batch_begin", self.cursor.steps)

    def run_call(self, epoch: int, steps: int) -> StepsDone:
        """Makes one compiled call of at most `steps` steps."""
        first, warm, stepwise = self.cursor.steps, self.warm, self.deliveries.stepwise
        is_alone = warm and self._suite.idle
        self._suite.admit(self.idle.count, beside_call=True)
        steps = self._capped(steps)
        if not warm:
            self.progress.preparing("compiling the training step")
        self.interrupts.expect(2 * steps * (self.pace.step_s or 0.0))
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        self.loop.close()  # which waits for what prepares it
        done = self.loop.run(self.cursor, steps)
        span = self.ledger.span("train", start_s, epoch, steps=done.steps)
        if is_alone:
            self.idle.observe(span.duration_s, time.process_time() - start_cpu_s)
        if not warm:
            self.warm = True
            self._hosts.begin_waits()  # in the first call hosts wait for the one that compiles longest
        self.ledger.accounts.trained(span, done.steps)
        self.pace.observe(done.steps, span.duration_s)
        self._course.step += done.steps
        if self.calls_batches and done.steps:
            self._call(self.hooks.batch, epoch, "on_train_batch_end", first + self._group - 1, done.logs)
        if stepwise is not None and done.steps:
            step = self._course.step
            stepwise.after(step - done.steps, step, lambda: self.take_snapshot(epoch))
        return done

    def _call(self, hook: Callable[..., None], epoch: int, *arguments: Any) -> None:
        """Calls a hook, and notes the epoch if it stops the training: a rollback of that undoes the stop."""
        stops = self.model.stop_training
        hook(epoch, *arguments)
        if self.model.stop_training and not stops:
            self.deliveries.delivery.stopped_in = epoch

    def show(self, epoch: int) -> None:
        """Shows how far the epoch is."""
        read = dict if self.step.metrics.by_python else self.step.metrics
        self.progress.steps_done(epoch, self.cursor.steps, lambda: keras_metrics.python_logs(read()))

    def logs(self, last: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the logs of a trained epoch: the `last` step's where that makes logs of its own."""
        if not self._course.step:
            return {}  # Keras has no logs before the first step, and its metrics do not count
        logs = self.step.metrics()
        return last if set(last) != set(logs) and self.step.own_logs else logs

    def name_slow_host(self, epoch: int) -> None:
        """Notes which host the others waited for in an epoch, if one stands out."""
        accounts = self.ledger.accounts
        slow = self._hosts.slow_host(accounts.trained_s(epoch))
        if slow is not None:
            accounts.slow_host(epoch, slow.host, slow.seconds)
            said = f"the others waited {slow.seconds:.2f} s for host {slow.host}"
            self.progress.message(f"epoch {epoch + 1}: {said}")

    def _capped(self, steps: int) -> int:
        """Returns how many steps a call may have before something else is due."""
        if (most := self.cursor.most_steps()) is not None:
            steps = min(steps, most)
        if self.calls_batches:
            return steps
        for due in (self.deliveries.stepwise, self.deliveries.resumer):
            if due is not None:
                steps = min(steps, due.steps_left(self._course.step) or steps)
        return steps
