"""One `fit`, from its first epoch to its last: the loop that the trainer has wired.

Everything here runs on the thread that called `fit`. Epochs are trained one after another; at the end of
each its snapshot goes to the validation, and the epoch joins the pending ones. Between two training calls
the oldest pending epoch is delivered if it is ready, and before a new epoch begins as many are waited for
as the lag demands. A delivery may roll the training back to its snapshot.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import keras

from overlap_train import _keras
from overlap_train.callbacks.delivery import Delivery, Outcome
from overlap_train.callbacks.hooks import wants_train_batches
from overlap_train.data.cursor import Cursor
from overlap_train.monitoring.accounts import Accounts
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.records import Span
from overlap_train.snapshot import ModelState, Snapshot
from overlap_train.training.loops import Loop, StepsDone
from overlap_train.training.pace import Pace
from overlap_train.training.step import Step
from overlap_train.validation.pending import PendingEpoch, ShardOutcome
from overlap_train.validation.runner import ValidationRunner

__all__ = ["FitSession", "Parts", "Schedule"]


@dataclass(frozen=True)
class Schedule:
    """Which epochs there are and which of them are validated."""

    initial_epoch: int
    epochs: int
    validates: Callable[[int], bool]
    max_lag: int
    timeout_s: float | None


@dataclass(frozen=True)
class Parts:
    """What the trainer has built for one `fit`."""

    model: keras.Model
    state: ModelState
    step: Step
    loop: Loop
    cursor: Cursor
    pace: Pace
    runner: ValidationRunner | None
    delivery: Delivery
    callbacks: keras.callbacks.CallbackList
    progress: ProgressReporter
    recorder: SpanRecorder
    accounts: Accounts


class FitSession:
    """Runs the epochs of one `fit`.

    Attributes:
        epoch_logs: the logs of each delivered epoch.
    """

    def __init__(self, parts: Parts, schedule: Schedule) -> None:
        self._parts = parts
        self._schedule = schedule
        self._pending: deque[PendingEpoch] = deque()
        self._next_epoch = schedule.initial_epoch
        self._step = 0
        self._stopped = False
        self._batch_hooks = any(wants_train_batches(c) for c in parts.callbacks.callbacks)
        self.epoch_logs: dict[int, Mapping[str, float]] = {}

    def run(self) -> None:
        """Trains, validates and delivers every epoch, then calls `on_train_end`."""
        model, callbacks = self._parts.model, self._parts.callbacks
        model.stop_training = False
        callbacks.on_train_begin()
        # BackupAndRestore sets this when it finds an interrupted training.
        self._next_epoch = getattr(model, "_initial_epoch", None) or self._schedule.initial_epoch
        while True:
            if self._next_epoch < self._schedule.epochs and not self._stopped:
                self._train_epoch(self._next_epoch)
                self._deliver_for_lag()
            elif self._pending:
                self._deliver_oldest()
            else:
                break
        model.optimizer.finalize_variable_values(model.trainable_weights)
        last = max(self.epoch_logs, default=None)
        callbacks.on_train_end(logs=None if last is None else dict(self.epoch_logs[last]))

    def close(self) -> None:
        """Drops what is pending, so that the workers are free to end."""
        while self._pending:
            self._pending.pop().cancel()

    def _train_epoch(self, epoch: int) -> None:
        """Trains an epoch to its end, or until a delivery rolls it back."""
        parts = self._parts
        parts.accounts.begin(epoch)
        parts.progress.epoch_begin(epoch)
        parts.model.reset_metrics()
        parts.callbacks.on_epoch_begin(epoch)
        parts.cursor.begin_epoch()
        logs: Mapping[str, float] | None = None
        while parts.cursor.remaining() != 0 and not parts.model.stop_training:
            done = self._train_call(epoch)
            logs = done.logs
            if self._deliver_ready() or (done.halted and self._halt(done)):
                return
            if done.exhausted:
                break
        self._end_epoch(epoch, logs)
        self._next_epoch = epoch + 1

    def _train_call(self, epoch: int) -> StepsDone:
        """Makes one compiled call of training steps."""
        parts = self._parts
        remaining = parts.cursor.remaining()
        steps = 1 if self._batch_hooks else parts.pace.steps()
        if remaining is not None:
            steps = min(steps, remaining)
        first = parts.cursor.steps
        if self._batch_hooks:
            parts.callbacks.on_train_batch_begin(first)
        start_s = time.monotonic()
        done = parts.loop.run(parts.cursor, steps)
        span = self._span("train", start_s, epoch, steps=done.steps)
        parts.accounts.trained(span, done.steps)
        parts.pace.observe(done.steps, span.duration_s)
        self._step += done.steps
        if self._batch_hooks and done.steps:
            parts.callbacks.on_train_batch_end(first, done.logs or parts.step.metrics())
        parts.progress.steps_done(epoch, parts.cursor.steps, lambda: _keras.python_logs(parts.step.metrics()))
        parts.progress.validation_pending(
            [(p.epoch, p.shards_done, len(p.shards)) for p in self._pending if p.validated]
        )
        return done

    def _halt(self, done: StepsDone) -> bool:
        """Shows TerminateOnNaN the step whose loss was not finite, once all earlier epochs are delivered.

        Returns:
            Whether one of those deliveries rolled this epoch back.
        """
        while self._pending:
            if self._deliver_oldest():
                return True
        logs = _keras.python_logs(done.logs or self._parts.step.metrics())
        for callback in self._parts.callbacks.callbacks:
            if isinstance(callback, keras.callbacks.TerminateOnNaN):
                callback.on_train_batch_end(self._parts.cursor.steps - 1, logs)
        return False

    def _end_epoch(self, epoch: int, logs: Mapping[str, float] | None) -> None:
        """Takes the snapshot of an epoch's end and starts its validation."""
        parts = self._parts
        parts.cursor.end_epoch()
        train_logs = _keras.python_logs(logs or parts.step.metrics())
        start_s = time.monotonic()
        snapshot = Snapshot(epoch, self._step, parts.state.read(), parts.cursor.state())
        span = self._span("snapshot", start_s, epoch)
        parts.accounts.add(epoch, "snapshot_s", span.duration_s)
        parts.progress.epoch_trained(epoch, train_logs, parts.accounts.trained_s(epoch))
        shards: Sequence[Future[ShardOutcome]] = ()
        if parts.runner is not None and self._schedule.validates(epoch):
            shards = parts.runner.start(snapshot)
        self._pending.append(PendingEpoch(snapshot, train_logs, shards, bool(parts.model.stop_training)))

    def _deliver_for_lag(self) -> None:
        """Delivers what has to be delivered before the next epoch may begin."""
        while self._pending and (
            self._pending[0].ready() or self._next_epoch - self._pending[0].epoch > self._schedule.max_lag
        ):
            if self._deliver_oldest():
                return

    def _deliver_ready(self) -> bool:
        """Delivers what is ready without waiting; returns whether that rolled the training back."""
        while self._pending and self._pending[0].ready():
            if self._deliver_oldest():
                return True
        return False

    def _deliver_oldest(self) -> bool:
        """Waits for the oldest pending epoch and delivers it; returns whether the training was rolled back."""
        parts, pending = self._parts, self._pending[0]
        if not pending.ready():
            start_s = time.monotonic()
            pending.wait(self._schedule.timeout_s, lambda: None)
            span = self._span("wait", start_s, pending.epoch)
            parts.accounts.add(pending.epoch, "waited_s", span.duration_s)
        val_logs = self._collect(pending) if pending.validated else None
        self._pending.popleft()

        start_s = time.monotonic()
        outcome = parts.delivery.deliver(
            pending.snapshot,
            pending.train_logs,
            val_logs,
            stops=pending.stops,
            trained_on=self._step != pending.snapshot.step,
        )
        span = self._span("deliver", start_s, pending.epoch)
        parts.accounts.add(pending.epoch, "delivered_s", span.duration_s)
        self._stopped = self._stopped or outcome.stop
        if outcome.rolled_back:
            self._roll_back(pending, outcome)
        self._close_epoch(pending, outcome, val_logs)
        return outcome.rolled_back

    def _collect(self, pending: PendingEpoch) -> dict[str, float]:
        """Merges the parts of a finished validation, in their order."""
        parts = self._parts
        assert parts.runner is not None
        outcomes = pending.outcomes()
        parts.accounts.validated(pending.epoch, [outcome.span for outcome in outcomes])
        results = [outcome.result for outcome in outcomes]
        parts.runner.adopt_mutated(results)
        return parts.runner.merge(results)

    def _roll_back(self, pending: PendingEpoch, outcome: Outcome) -> None:
        """Forgets what was trained after a snapshot; its values are already in the model."""
        parts = self._parts
        seconds = parts.accounts.drop_after(pending.epoch)
        parts.accounts.add(pending.epoch, "rolled_back_s", seconds)
        while self._pending:
            self._pending.pop().cancel()
        parts.cursor.restore(pending.snapshot.position)
        self._step = pending.snapshot.step
        self._next_epoch = pending.epoch + 1
        reason = (
            "a callback stopped the training" if outcome.stop else f"a callback changed {outcome.changed[0]}"
        )
        parts.progress.message(
            f"back to the end of epoch {self._next_epoch}: {reason}; {seconds:.2f} s undone"
        )

    def _close_epoch(
        self, pending: PendingEpoch, outcome: Outcome, val_logs: Mapping[str, float] | None
    ) -> None:
        parts = self._parts
        self.epoch_logs[pending.epoch] = outcome.logs
        parts.accounts.close(pending.epoch)
        if not self._pending:
            parts.cursor.forget(pending.snapshot.position)
        if val_logs is not None:
            parts.progress.epoch_validated(pending.epoch, {f"val_{k}": v for k, v in val_logs.items()})

    def _span(self, name: str, start_s: float, epoch: int, **details: int) -> Span:
        thread = threading.current_thread().name
        span = Span(name, thread, start_s, time.monotonic(), epoch, self._step, details)
        self._parts.recorder.add(span)
        return span
