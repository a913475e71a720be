"""The epochs that have been trained: their validation begun, waited for, delivered, and what comes of it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from overlap_train._callbacks.delivery import BeginNext, Delivery, Outcome
from overlap_train._callbacks.inside import EpochHooks
from overlap_train._checkpoint.resume import Resumer
from overlap_train._data.cursor import Cursor
from overlap_train._fit.checkpointing import Checkpoints
from overlap_train._fit.course import Ledger
from overlap_train._fit.interrupts import Interrupted
from overlap_train._fit.lag import LagControl
from overlap_train._snapshot import Snapshot
from overlap_train._support.results import flat, prefixed
from overlap_train._validation.backlog import Backlog
from overlap_train._validation.pending import PendingEpoch
from overlap_train._validation.step_validations import StepValidations
from overlap_train._validation.suite import ValidationSuite
from overlap_train.errors import CheckpointError, ValidationTimeoutError, ValidationWorkerError
from overlap_train.monitoring.quiet import QuietProgress
from overlap_train.parallel.hosts import Hosts


@dataclass
class Deliveries:
    """Delivers epochs in their order. On the training thread."""

    callbacks: Any
    hooks: EpochHooks
    suite: ValidationSuite
    backlog: Backlog
    delivery: Delivery
    stepwise: StepValidations | None
    lag: LagControl
    resumer: Resumer | None
    cursor: Cursor
    ledger: Ledger
    progress: QuietProgress
    hosts: Hosts
    timeout_s: float | None  # for one validation
    check_interrupted: Callable[[], None]  # raises `Interrupted` after a signal, on one host

    def __post_init__(self) -> None:
        self._course = self.ledger.course
        self.checkpoints: Checkpoints | None = None
        if self.resumer is not None:
            waiting = self.backlog, self.hooks, self.stepwise, self.hosts, self.check_interrupted
            self.checkpoints = Checkpoints(self.resumer, self._course, *waiting)
        self._has_warned = False
        self._failure: BaseException | None = None
        self._failed_ahead = False

    def __len__(self) -> int:
        """Returns how many epochs wait."""
        return len(self.backlog)

    def begin(self, snapshot: Snapshot, logs: Mapping[str, Any], *, stops: bool) -> None:
        """Begins the validation of an epoch."""
        last = stops or snapshot.epoch + 1 >= self._course.epochs
        self.suite.hold()  # until the training is under way again, or waits
        self.backlog.push(snapshot, logs, stops=stops, last=last)
        self._wait_until_drawn()

    def draws_in_order(self, epoch: int) -> bool:
        """Whether the batches of an epoch's validation are drawn only after all that precedes it."""
        return self.backlog.blocks and self.suite.draws_in_order and self.suite.due(epoch)

    def ready(self) -> bool:
        """Whether the oldest epoch can be delivered without waiting, on all hosts."""
        return len(self.backlog) > 0 and self.hosts.all(self.backlog.ready())

    def deliver_ready(self) -> bool:
        """Delivers what is ready without waiting; returns whether that rolled the training back."""
        while self.ready():
            if self.deliver_oldest():
                return True
        return False

    def deliver_all(self) -> bool:
        """Waits for all epochs, until one rolls the training back; returns whether one did."""
        while len(self.backlog):
            if self.deliver_oldest():
                return True
        return False

    def take_back(self, error: Exception) -> bool:
        """Delivers the epochs that wait when the training has failed ahead of them.

        Returns whether one of them ended the training, or rolled it back to be trained again: under Keras the
        error does not come then. Behind an error, kept batches cannot be trained again. What a delivery
        raises comes first; that a checkpoint could not be written counts in any case.
        """
        counts = error is self._failure or isinstance(error, (Interrupted, CheckpointError))
        if counts or self.hosts.count > 1 or not len(self.backlog):
            return False
        self._failed_ahead = True  # perhaps between two steps of a call, which has not counted them
        try:
            undone = self.deliver_all() and self.cursor.feed.replay is None
            return undone or self._course.stopped
        finally:
            self._failed_ahead = False

    def make_room(self) -> bool:
        """Forgets batches that nothing will replay, or waits for room; returns whether that rolled back."""
        while (replay := self.cursor.feed.replay) is not None and replay.full and len(self.backlog):
            if not self._has_warned:
                self._has_warned = True
                self.progress.message(
                    "waiting for validations, because the batches that a rollback would replay take all of "
                    "ValidationPolicy.keep_bytes"
                )
            if self.deliver_oldest():
                return True
        if not len(self.backlog):
            self.cursor.forget_used()
        return False

    @property
    def stops(self) -> bool:
        """Whether a callback has stopped the training; a delivery may yet undo a stop within an epoch."""
        return self._course.stopped or any(pending.stops for pending in self.backlog)

    def deliver_before(self, next_epoch: int, splits: int) -> None:
        """Delivers what is ready, and waits for what has to be delivered before an epoch may begin."""
        alone = self._follows(next_epoch) and self.lag.wants_alone(next_epoch - 1, splits)
        while len(self.backlog) and (alone or self.backlog.must_wait(next_epoch) or self.ready()):
            if self.deliver_oldest():
                break

    def deliver_oldest(self, timeout_s: float | None = None) -> bool:
        """Waits for the oldest epoch and delivers it; returns whether that rolled the training back."""
        try:
            return self._deliver_next(timeout_s)
        except BaseException as error:
            self._failure = error
            raise

    def _deliver_next(self, timeout_s: float | None) -> bool:
        pending = self.backlog.oldest
        self._wait(pending, timeout_s)
        try:
            outcome = self._deliver(pending)
        except BaseException:
            self._rewind(pending.snapshot)  # to where it stands then under Keras
            raise
        if outcome.rolled_back:
            self._roll_back(pending, outcome)
        self.lag.delivered(rolled_back=outcome.rolled_back)
        self._close(pending, outcome)
        if outcome.rolled_back:
            self.hooks.drop()
        else:
            self.hooks.release(pending.epoch + 1)
            self.backlog.begin_next()
            self._wait_until_drawn(timeout_s)
        self.release_step_validations()
        return outcome.rolled_back

    def _deliver(self, pending: PendingEpoch) -> Outcome:
        """Calls the callbacks of an epoch whose validations are done."""
        try:
            results, spans = self.suite.collect(pending)
        except ValidationWorkerError:
            self.delivery.state.restore(pending.snapshot.values)  # where it began, as under Keras
            raise
        accounts = self.ledger.accounts
        accounts.validated(pending.epoch, spans)
        self.backlog.pop()
        self.cursor.warn(pending.snapshot.position)
        self.suite.admit(None)  # while callbacks run the training needs one core
        start_s = time.monotonic()
        trained_on = self._trained_on(pending.snapshot)
        outcome = self.delivery.deliver(
            pending.snapshot,
            pending.train_logs,
            results,
            stops=pending.stops,
            trained_on=trained_on,
            ended=functools.partial(self._ended, pending, trained_on=trained_on),
            begin_next=self._begin_next(pending.epoch + 1),
        )
        if outcome.spans:
            accounts.validated(pending.epoch, outcome.spans, delivering=True)
        self.ledger.charge("deliver", start_s, pending.epoch, "delivered_s")
        return outcome

    def _ended(self, pending: PendingEpoch, outcome: Outcome, *, trained_on: bool) -> None:
        """Takes in what `on_epoch_end` did, before the next epoch begins, and writes a checkpoint of it."""
        course, position = self._course, pending.snapshot.position
        course.stopped = course.stopped or outcome.stop
        if not trained_on:
            position = self.cursor.as_left(position)
            pending.stands_at(position)
        if self.checkpoints is not None:
            self.checkpoints.write_delivered(pending.snapshot, outcome, position)

    def _begin_next(self, epoch: int) -> BeginNext | None:
        """Returns what calls the `on_epoch_begin` of an epoch late, while the training may be further."""
        begin = self.hooks.begins_late(epoch)
        if begin is None or not len(self.backlog):
            return begin
        trained = self.backlog.oldest.snapshot.values
        return lambda aside: begin(trained)

    def _trained_on(self, snapshot: Snapshot) -> bool:
        """Whether training has gone on from a snapshot, even if only to reset its metrics."""
        return self._failed_ahead or self.cursor.within or self._course.step != snapshot.step

    def _rewind(self, snapshot: Snapshot) -> None:
        """Puts the data back to its position at a snapshot."""
        trained_on = self._trained_on(snapshot)
        self.cursor.restore(snapshot.position)
        if trained_on:  # otherwise what the validation and the callbacks have drawn and set stays
            self.delivery.state.restore_pipeline(snapshot.values)

    def deliver_until(self, deadline_s: float) -> None:
        """Delivers the epochs whose validations end in time."""
        if self.hosts.count > 1:
            return  # what ends in time on one host need not on another
        with contextlib.suppress(ValidationTimeoutError):
            while len(self.backlog) and not self._course.stopped:
                self.deliver_oldest(timeout_s=max(0.05, deadline_s - time.monotonic()))

    def give_up(self) -> None:
        """Forgets the epochs that wait, and what is validated inside those behind the first of them."""
        if self.stepwise is not None and len(self.backlog):
            self.stepwise.drop_after(self.backlog.oldest.snapshot.step)
        self.backlog.drop()

    def finish_step_validations(self) -> None:
        """Waits for the validation inside an epoch that is under way."""
        if self.stepwise is not None:
            self.stepwise.wait()
            self.release_step_validations()

    def release_step_validations(self) -> None:
        """Delivers the results inside epochs that no rollback can undo. What that raises, none takes back."""
        if self.stepwise is not None:
            try:
                self.stepwise.release(self.backlog.oldest.epoch if len(self.backlog) else None)
            except BaseException as error:
                self._failure = error
                raise

    def show(self) -> None:
        """Shows which validations are under way."""
        shards = [(p.epoch, sum(f.done() for f in p.shards), len(p.shards)) for p in self.backlog if p.shards]
        self.progress.validation_pending(shards)

    def _follows(self, next_epoch: int) -> bool:
        """Whether an epoch will be trained, as far as is known, after those that are being validated."""
        goes_on = next_epoch < self._course.epochs and not self.stops
        return goes_on and any(pending.is_validated for pending in self.backlog)

    def _wait_until_drawn(self, timeout_s: float | None = None) -> None:
        """Waits for validation batches that are drawn in the order of Keras; see `deliver_oldest`."""
        if self.suite.draws_in_order and len(self.backlog):
            start_s = time.monotonic()
            self.suite.wait_until_drawn(*self._limits(timeout_s))
            self.ledger.charge("wait", start_s, self.backlog.oldest.epoch, "waited_s")

    def _wait(self, pending: PendingEpoch, timeout_s: float | None) -> None:
        if pending.ready():
            return
        self.suite.admit(None)
        start_s = time.monotonic()
        pending.wait(*self._limits(timeout_s))
        self.ledger.charge("wait", start_s, pending.epoch, "waited_s")

    def _limits(self, timeout_s: float | None) -> tuple[float | None, Callable[[], None]]:
        """Returns how long to wait, and what is called meanwhile; with a time-out, signals end no wait."""
        return (self.timeout_s, self.check_interrupted) if timeout_s is None else (timeout_s, lambda: None)

    def _roll_back(self, pending: PendingEpoch, outcome: Outcome) -> None:
        """Forgets what was trained after a snapshot; its values are already in the model."""
        accounts, course, start_s = self.ledger.accounts, self._course, time.monotonic()
        seconds = accounts.roll_back(pending.epoch)
        self.backlog.drop()
        self._rewind(pending.snapshot)
        course.step, course.next_epoch = pending.snapshot.step, pending.epoch + 1
        if self.stepwise is not None:
            self.stepwise.drop_after(course.step)
        self.ledger.span("rollback", start_s, pending.epoch)
        where = f"back to the end of epoch {pending.epoch + 1}"
        self.progress.message(f"{where}: {outcome.reason} ({seconds:.2f} s undone)")

    def _close(self, pending: PendingEpoch, outcome: Outcome) -> None:
        self._course.logs[pending.epoch] = outcome.logs
        self.ledger.accounts.close(pending.epoch, skipped=pending.skipped)
        self.cursor.forget(pending.snapshot.position)
        shown = flat(prefixed(outcome.results)) | self.delivery.added(outcome.logs)
        self.progress.epoch_delivered(pending.epoch, shown)
