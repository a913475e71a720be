"""The validations that wait: of epochs, oldest first (contract C6), and those between the ends of epochs."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import keras

from overlap_train._snapshot import Snapshot
from overlap_train._validation.pending import PendingEpoch
from overlap_train._validation.suite import ValidationSuite
from overlap_train.options.validation import ValidationPolicy
from overlap_train.records import MetricValues, StepValidation, prefixed


class Backlog:
    """A queue of trained epochs. Belongs to the training thread."""

    def __init__(self, policy: ValidationPolicy, suite: ValidationSuite, *, max_lag: int) -> None:
        self._policy = policy
        self._suite = suite
        self._queue: deque[PendingEpoch] = deque()
        self.max_lag = max_lag

    @property
    def blocks(self) -> bool:
        """Whether every epoch gets its validation, whatever the clock says."""
        return self._policy.backlog == "block"

    def __iter__(self) -> Iterator[PendingEpoch]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def oldest(self) -> PendingEpoch:
        return self._queue[0]

    def push(
        self, snapshot: Snapshot, train_logs: Mapping[str, float], *, stops: bool, last: bool
    ) -> PendingEpoch:
        """Appends an epoch and begins its validation, unless the policy leaves it out."""
        due = self._suite.due(snapshot.epoch)
        if due and not last and self._policy.backlog == "latest":
            self._give_up_waiting()
        pending = PendingEpoch(snapshot, train_logs, stops=stops)
        if due:
            pending.start = functools.partial(self._suite.start, snapshot)
        self._queue.append(pending)
        # What a validation takes of the user's data must not be taken for an epoch that is rolled back.
        if len(self._queue) == 1 or not self._suite.runs_python:
            pending.begin()
        return pending

    def begin_next(self) -> None:
        """Begins the validation of the epoch that is the oldest now, if it has waited for that."""
        if self._queue:
            self._queue[0].begin()

    def ready(self) -> bool:
        """Whether the oldest epoch can be delivered without waiting."""
        return bool(self._queue) and self._queue[0].ready()

    def must_wait(self, next_epoch: int) -> bool:
        """Whether the oldest epoch has to be delivered before `next_epoch` may begin."""
        if not self._queue:
            return False
        if self._policy.backlog == "block" or self.max_lag == 0:
            return next_epoch - self._queue[0].epoch > self.max_lag
        return len(self._queue) >= self._policy.max_snapshots

    def pop(self) -> PendingEpoch:
        """Removes the oldest epoch."""
        return self._queue.popleft()

    def drop(self) -> None:
        """Gives up every epoch that waits."""
        while self._queue:
            self._queue.pop().cancel()

    def _give_up_waiting(self) -> None:
        for pending in self._queue:
            if pending.is_validated and not any(v.begun() for v in pending.validations):
                pending.leave_out()


@dataclass
class StepValidations:
    """Validates snapshots inside epochs. Belongs to the training thread.

    One is under way at a time: if it is not finished when the next is due, training waits for it. A result
    is delivered once the training cannot go back behind it any more: when all earlier epochs have been.
    """

    suite: ValidationSuite
    every_steps: int
    deliver: Callable[[StepValidation], None]
    delivered: list[StepValidation] = field(default_factory=list)
    timeout_s: float | None = None  # for one of them
    _pending: PendingEpoch | None = None
    _live: MetricValues = field(default_factory=dict)
    _finished: list[StepValidation] = field(default_factory=list)

    def steps_left(self, step: int) -> int:
        """Returns how many steps may follow `step` before the next validation is due."""
        return self.every_steps - step % self.every_steps

    def after(self, before: int, step: int, take: Callable[[], Snapshot]) -> None:
        """Begins a validation if one is due, and collects what is finished."""
        if self._pending is not None and self.suite.hosts.all(self._pending.ready()):
            self._finish()
        if before // self.every_steps != step // self.every_steps:
            self.wait()
            snapshot = take()
            self._begin(snapshot, prefixed(self.suite.run_live_alone()))

    @property
    def idle(self) -> bool:
        """Whether none is under way, and no result waits for its delivery."""
        return self._pending is None and not self._finished

    def wait(self) -> None:
        """Waits for the one under way and collects it."""
        if self._pending is not None:
            self.suite.admit(None)
            self._pending.wait(self.timeout_s, lambda: None)
            self._finish()

    def release(self, oldest_epoch: int | None) -> None:
        """Delivers the results that nothing can undo."""
        while self._finished and (oldest_epoch is None or self._finished[0].epoch <= oldest_epoch):
            result = self._finished.pop(0)
            self.delivered.append(result)
            self.deliver(result)

    def drop_after(self, step: int) -> None:
        """Gives up what was begun after `step`, because training went back to there."""
        self._finished = [result for result in self._finished if result.step <= step]
        if self._pending is not None and self._pending.snapshot.step > step:
            self._pending.cancel()
            self._pending = None

    def _begin(self, snapshot: Snapshot, live: MetricValues) -> None:
        self._live = live
        self.suite.hold()
        self._pending = PendingEpoch(snapshot, {}, self.suite.start(snapshot, on_all=True))
        self.suite.wait_until_drawn(None, lambda: None)

    def _finish(self) -> None:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        results, _ = self.suite.collect(pending)
        metrics = {**prefixed(results), **self._live}
        self._finished.append(StepValidation(pending.epoch, pending.snapshot.step, metrics))


def deliver_step_validation(callbacks: Iterable[keras.callbacks.Callback], result: StepValidation) -> None:
    """Gives a result to the callbacks that have a method `on_step_validation(step, logs)`."""
    for callback in callbacks:
        listener = getattr(callback, "on_step_validation", None)
        if callable(listener):
            listener(result.step, dict(result.metrics))
