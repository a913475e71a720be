"""One `fit`, from its first epoch to its last: the loop that the trainer has wired.

Everything here runs on the thread that called `fit`. Epochs are trained one after another; at the end of
each its snapshot goes to the validation, and the epoch joins the backlog. Between two training calls the
oldest epoch of the backlog is delivered if it is ready, and before a new epoch begins as many are waited
for as the lag demands. A delivery may roll the training back to its snapshot.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from overlap_train._callbacks.delivery import Outcome
from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._checkpoint.resume import StartPoint
from overlap_train._fit.first_hooks import Opening
from overlap_train._fit.idle_cores import IdleCores
from overlap_train._fit.lag import LagControl
from overlap_train._fit.parts import Parts, Schedule
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import Snapshot
from overlap_train._training.loops import StepsDone
from overlap_train._validation.pending import PendingEpoch
from overlap_train.options.threads import available_cores
from overlap_train.records import Span, prefixed

__all__ = ["FitSession"]

# An interrupted fit delivers validations that end within this time.
_GRACE_S = 5.0


class Interrupted(Exception):
    """Ends a wait because a signal came; does not leave the session."""


class FitSession:
    """Runs the epochs of one `fit`.

    Attributes:
        epoch_logs: the logs of each delivered epoch.
        ended: how it ended: "completed", "stopped" by a callback, or "interrupted by" a signal.
    """

    def __init__(
        self, parts: Parts, schedule: Schedule, opening: Opening, renew: Callable[[Parts], Parts]
    ) -> None:
        """Takes over a fit whose first hooks have been called.

        Args:
            parts: what the trainer has built.
            schedule: the epochs.
            opening: what has been called.
            renew: builds the parts anew after a callback has compiled the model or its train function.
        """
        self._parts = parts
        self._schedule = schedule
        self._opening = opening
        self._renew = renew
        self._begun = opening.begun
        self._train_function = opening.train_function
        self._next_epoch = self._first_epoch = opening.epoch
        self._group = keras_training.steps_per_execution(parts.model)
        self._last_logs: Mapping[str, Any] = {}
        self._step = 0
        self._stopped = False
        self._idle = IdleCores(available_cores())
        self._lag = self._lag_control()
        self._warm = False
        self._batch_hooks = any(wants_train_batches(c) for c in parts.callbacks.callbacks)
        self.epoch_logs: dict[int, Mapping[str, float]] = {}
        self.ended = "completed"

    def run(self) -> None:
        """Trains, validates and delivers every epoch, then calls `on_train_end`."""
        model, callbacks = self._parts.model, self._parts.callbacks
        self._next_epoch = self._parts.hosts.from_chief(self._opening.epoch)
        self._resume()
        self._first_epoch = self._next_epoch
        try:
            self._run_epochs()
        except Interrupted:
            self._deliver_in_grace()
        self._release_step_validations()
        self._parts.loop.finish()
        if isinstance(model.optimizer, keras.optimizers.Optimizer):
            with self._parts.scope():
                model.optimizer.finalize_variable_values(model.trainable_weights)
        last = max(self.epoch_logs, default=None)
        callbacks.on_train_end(logs=None if last is None else dict(self.epoch_logs[last]))

    def _run_epochs(self) -> None:
        while True:
            # An epoch that was told to stop is delivered first: what it tells may yet be undone.
            over = self._stopped or any(pending.stops for pending in self._parts.backlog)
            if self._next_epoch < self._schedule.epochs and not over:
                self._train_epoch(self._next_epoch)
                alone = self._waits_alone()
                while len(self._parts.backlog) and (
                    alone or self._parts.backlog.must_wait(self._next_epoch) or self._ready()
                ):
                    if self._deliver_oldest():
                        break
            elif len(self._parts.backlog):
                self._deliver_oldest()
            else:
                break
        if self._parts.stepwise is not None:
            self._parts.stepwise.wait()
            self._release_step_validations()
        if self._parts.resumer is not None:
            self._parts.resumer.wait()
        if self._stopped:
            self.ended = "stopped"

    def _waits_alone(self) -> bool:
        """Whether the epoch that has just been trained is to be validated before another begins."""
        follows = self._next_epoch < self._schedule.epochs and any(p.validations for p in self._parts.backlog)
        return follows and self._lag.wants_alone(self._next_epoch - 1, self._parts.loop.splits)

    def _resume(self) -> None:
        """Goes on from the newest checkpoint, if there is one."""
        parts = self._parts
        if parts.resumer is None:
            return
        point = parts.resumer.start(parts.state, parts.cursor, parts.callbacks.callbacks)
        if point is None:
            return
        self._next_epoch, self._step, self._stopped = point.epoch, point.step, point.stopped
        parts.model.stop_training = point.stopped
        parts.backlog.max_lag = min(parts.backlog.max_lag, point.max_lag)
        self.epoch_logs[point.epoch - 1] = point.logs
        parts.progress.message(f"resumed after epoch {point.epoch}")

    def _train_epoch(self, epoch: int) -> None:
        """Trains an epoch to its end, or until a delivery rolls it back."""
        parts = self._parts
        parts.accounts.begin(epoch)
        parts.progress.epoch_begin(epoch)
        if not self._begun:
            parts.model.reset_metrics()
            parts.callbacks.on_epoch_begin(epoch)
        parts.cursor.begin_epoch()
        parts.hosts.begin_waits()
        while parts.cursor.remaining() != 0:
            # A training that was told to stop before an epoch's first step makes one call all the same.
            done = self._train_call(epoch, self._agreed_steps())
            if done.steps:  # the call that finds the end of the data may make none
                self._last_logs = done.logs or {}
            if self._deliver_ready() or (done.halted and self._halt(done)):
                return
            if done.exhausted or parts.model.stop_training:
                break
        self._end_epoch(epoch)
        self._next_epoch = epoch + 1

    def _agreed_steps(self) -> int:
        """Returns how many steps the next call is to have: on several hosts, as many as the chief wants.

        Raises:
            Interrupted: if any of them has been asked to stop.
        """
        parts = self._parts
        grouped = self._batch_hooks or parts.model.stop_training
        steps = self._group if grouped else parts.pace.steps()
        if parts.hosts.count > 1:
            table = parts.hosts.numbers([steps, parts.interrupts.received is not None])
            if table[:, 1].any():
                raise Interrupted
            return int(table[0, 0])
        self._check_interrupted()
        return steps

    def _ready(self) -> bool:
        """Whether the oldest epoch can be delivered without waiting, on all hosts."""
        backlog = self._parts.backlog
        return len(backlog) > 0 and self._parts.hosts.all(backlog.ready())

    def _train_call(self, epoch: int, steps: int) -> StepsDone:
        """Makes one compiled call of training steps."""
        parts = self._parts
        remaining = parts.cursor.remaining()
        if remaining is not None:
            steps = min(steps, remaining)
        if parts.stepwise is not None and not self._batch_hooks:
            steps = min(steps, parts.stepwise.steps_left(self._step) or steps)
        first = parts.cursor.steps
        if self._batch_hooks and not self._begun:
            parts.callbacks.on_train_batch_begin(first)
        self._begun = False
        parts = self._traced_parts()
        undisturbed = self._warm and parts.suite.idle
        settled = self._warm and parts.loop.settled
        parts.suite.admit_beside(self._idle.count)
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        done = parts.loop.run(parts.cursor, steps)
        span = self._span("train", start_s, epoch, steps=done.steps)
        if undisturbed:
            self._idle.observe(span.duration_s, time.process_time() - start_cpu_s)
        parts.accounts.trained(span, done.steps)
        if not self._warm:
            self._warm = True
            parts.hosts.begin_waits()  # in the first call hosts wait for whoever compiles longest
        if settled and epoch > self._first_epoch:  # in which the rest is traced
            self._lag.trained(span, done.steps)
        parts.pace.observe(done.steps, span.duration_s)
        self._step += done.steps
        if self._batch_hooks and done.steps:
            parts.callbacks.on_train_batch_end(first + self._group - 1, done.logs)
        if parts.stepwise is not None and done.steps:
            parts.stepwise.after(self._step - done.steps, self._step, lambda: self._snapshot(epoch))
            self._release_step_validations()
        parts.progress.steps_done(
            epoch, parts.cursor.steps, lambda: keras_metrics.python_logs(parts.step.metrics())
        )
        parts.progress.validation_pending(
            [(p.epoch, sum(f.done() for f in p.shards), len(p.shards)) for p in parts.backlog if p.shards]
        )
        return done

    def _halt(self, done: StepsDone) -> bool:
        """Shows TerminateOnNaN the step whose loss was not finite, once all earlier epochs are delivered.

        Returns:
            Whether one of those deliveries rolled this epoch back.
        """
        while len(self._parts.backlog):
            if self._deliver_oldest():
                return True
        logs = keras_metrics.python_logs(done.logs)
        for callback in self._parts.callbacks.callbacks:
            if isinstance(callback, keras.callbacks.TerminateOnNaN):
                callback.on_train_batch_end(self._parts.cursor.steps - 1, logs)
        return False

    def _end_epoch(self, epoch: int) -> None:
        """Takes the snapshot of an epoch's end and starts its validation."""
        parts = self._validated_parts(epoch)
        parts.cursor.end_epoch()
        logs = parts.step.metrics()
        if set(self._last_logs) != set(logs) and parts.step.own_logs:
            logs = self._last_logs
        train_logs = keras_metrics.python_logs(
            logs
        )  # callbacks get them as they are: Keras sorts nested ones once
        parts.hosts.check_same_logs(epoch, {n: v for n, v in train_logs.items() if isinstance(v, float)})
        self._name_slow_host(epoch)
        start_s = time.monotonic()
        snapshot = self._snapshot(epoch)
        span = self._span("snapshot", start_s, epoch)
        parts.accounts.add(epoch, "snapshot_s", span.duration_s)
        stops = bool(parts.model.stop_training)
        last = stops or epoch + 1 >= self._schedule.epochs
        parts.suite.hold()  # until the training is under way again, or waits
        pending = parts.backlog.push(snapshot, logs, stops=stops, last=last)
        parts.progress.epoch_trained(
            epoch, train_logs, parts.accounts.trained_s(epoch), validation_follows=bool(pending.validations)
        )

    def _name_slow_host(self, epoch: int) -> None:
        """Notes which host the others waited for in an epoch, if one stands out."""
        parts = self._parts
        slow = parts.hosts.slow_host(parts.accounts.trained_s(epoch))
        if slow is not None:
            parts.accounts.slow_host(epoch, slow.host, slow.seconds)
            parts.progress.message(
                f"epoch {epoch + 1}: the others waited {slow.seconds:.2f} s for host {slow.host}"
            )

    def _deliver_ready(self) -> bool:
        """Delivers what is ready without waiting; returns whether that rolled the training back."""
        while self._ready():
            if self._deliver_oldest():
                return True
        return False

    def _deliver_oldest(self, timeout_s: float | None = None) -> bool:
        """Waits for the oldest epoch and delivers it; returns whether that rolled the training back."""
        parts, pending = self._parts, self._parts.backlog.oldest
        if not pending.ready():
            parts.suite.admit(None)
            start_s = time.monotonic()
            if timeout_s is None:
                pending.wait(self._schedule.timeout_s, self._check_interrupted)
            else:
                pending.wait(timeout_s, lambda: None)
            span = self._span("wait", start_s, pending.epoch)
            parts.accounts.add(pending.epoch, "waited_s", span.duration_s)
        results, spans = parts.suite.collect(pending)
        parts.accounts.validated(pending.epoch, spans)
        parts.backlog.pop()

        parts.suite.admit(None)  # while callbacks run the training needs one core
        start_s = time.monotonic()
        trained_on = self._step != pending.snapshot.step
        self._lag.validated(pending.epoch, spans, alone=not trained_on)
        outcome = parts.delivery.deliver(
            pending.snapshot, pending.train_logs, results, stops=pending.stops, trained_on=trained_on
        )
        if outcome.spans:
            parts.accounts.validated(pending.epoch, outcome.spans)
        span = self._span("deliver", start_s, pending.epoch)
        parts.accounts.add(pending.epoch, "delivered_s", span.duration_s)
        self._stopped = self._stopped or outcome.stop
        if outcome.rolled_back:
            self._roll_back(pending, outcome)
        self._lag.delivered(rolled_back=outcome.rolled_back)
        self._close_epoch(pending, outcome)
        self._release_step_validations()
        return outcome.rolled_back

    def _roll_back(self, pending: PendingEpoch, outcome: Outcome) -> None:
        """Forgets what was trained after a snapshot; its values are already in the model."""
        parts = self._parts
        seconds = parts.accounts.drop_after(pending.epoch)
        parts.accounts.add(pending.epoch, "rolled_back_s", seconds)
        parts.backlog.drop()
        parts.cursor.restore(pending.snapshot.position)
        self._step = pending.snapshot.step
        self._next_epoch = pending.epoch + 1
        if parts.stepwise is not None:
            parts.stepwise.drop_after(self._step)
        reason = "a callback stopped the training" if outcome.stop else "a callback compiled the model anew"
        reason = f"a callback set {outcome.changed[0]}" if outcome.changed and not outcome.stop else reason
        parts.progress.message(
            f"back to the end of epoch {pending.epoch + 1}: {reason} ({seconds:.2f} s undone)"
        )

    def _close_epoch(self, pending: PendingEpoch, outcome: Outcome) -> None:
        parts = self._parts
        self.epoch_logs[pending.epoch] = outcome.logs
        parts.accounts.close(pending.epoch, skipped=pending.skipped)
        parts.cursor.forget(pending.snapshot.position)
        if outcome.results:
            parts.progress.epoch_validated(pending.epoch, prefixed(outcome.results))
        if parts.resumer is not None:
            following = pending.epoch + 1
            stopped = self._stopped
            logs, lag = dict(outcome.logs), parts.backlog.max_lag
            parts.resumer.delivered(
                StartPoint(following, pending.snapshot.step, stopped, logs, lag),
                outcome.values,
                pending.snapshot.position,
                parts.callbacks.callbacks,
                last=stopped or following >= self._schedule.epochs,
            )

    def _traced_parts(self) -> Parts:
        """Returns the parts, built anew if a callback has had the train function made anew.

        Raises:
            TypeError: the model was compiled, and nothing has made its train function since.
        """
        function = keras_training.train_function(self._parts.model)
        if function is self._train_function:
            return self._parts
        if function is None:
            raise TypeError(
                "'NoneType' object is not callable: a callback has compiled the model, which takes its train "
                "function away, as under keras.Model.fit; let it call model.make_train_function() as well"
            )
        self._train_function = function
        return self._renewed("a callback had the train function made anew; traced again")

    def _validated_parts(self, epoch: int) -> Parts:
        """Returns the parts, built anew before the first validation if its trace holds what is true no more.

        Keras traces the validation when it first validates, and sees what has been set until then.
        """
        traced_with = self._parts.traced_with
        if traced_with is None or not self._parts.suite.due(epoch):
            return self._parts
        changed = traced_with.changed()
        if changed is None:
            self._parts = dataclasses.replace(self._parts, traced_with=None)
            return self._parts
        traced_with.forget_validation()
        return self._renewed(f"{changed} was set before the first validation, which is traced again")

    def _renewed(self, reason: str) -> Parts:
        """Returns the parts built anew, once all that is under way has been delivered."""
        while len(self._parts.backlog):
            self._deliver_oldest()
        if self._parts.stepwise is not None:
            self._parts.stepwise.wait()
            self._release_step_validations()
        self._parts = self._renew(self._parts)
        self._lag = self._lag_control()
        self._warm = False
        self._parts.progress.message(reason)
        return self._parts

    def _release_step_validations(self) -> None:
        """Delivers the results of validations inside epochs that no rollback can undo."""
        backlog = self._parts.backlog
        if self._parts.stepwise is not None:
            self._parts.stepwise.release(backlog.oldest.epoch if len(backlog) else None)

    def _lag_control(self) -> LagControl:
        parts = self._parts
        return LagControl(
            parts.backlog,
            parts.progress.message,
            self._idle if parts.suite.shares_cores else None,
            streamed=self._schedule.streamed,
            judges_overlap=self._schedule.judges_overlap,
        )

    def _check_interrupted(self) -> None:
        # On several hosts all of them stop at the same call.
        if self._parts.hosts.count == 1 and self._parts.interrupts.received is not None:
            raise Interrupted

    def _deliver_in_grace(self) -> None:
        """Delivers the epochs whose validations end soon, and gives the others up."""
        parts = self._parts
        names = parts.hosts.gather(parts.interrupts.received)
        self.ended = f"interrupted by {next(name for name in names if name)}"
        if parts.hosts.count > 1:
            parts.backlog.drop()  # what ends in time on one host need not on another
        deadline = time.monotonic() + _GRACE_S
        parts.progress.message(f"{self.ended}: delivering what is finished within {_GRACE_S:g} s")
        try:
            while len(parts.backlog) and not self._stopped:
                self._deliver_oldest(timeout_s=max(0.05, deadline - time.monotonic()))
        except TimeoutError:
            parts.backlog.drop()

    def _snapshot(self, epoch: int) -> Snapshot:
        return Snapshot(epoch, self._step, self._parts.state.read(), self._parts.cursor.state())

    def _span(self, name: str, start_s: float, epoch: int, **details: int) -> Span:
        thread = threading.current_thread().name
        span = Span(name, thread, start_s, time.monotonic(), epoch, self._step, details)
        self._parts.recorder.add(span)
        return span
