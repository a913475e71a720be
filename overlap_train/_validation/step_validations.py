"""Validations inside epochs (`ValidationPolicy(every_steps=...)`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import keras

from overlap_train._snapshot import Snapshot
from overlap_train._support.results import prefixed
from overlap_train._validation.pending import PendingEpoch
from overlap_train._validation.suite import ValidationSuite
from overlap_train.errors import ValidationWorkerError
from overlap_train.records import MetricValues, StepValidation


@dataclass(frozen=True)
class _Failure:
    """A validation that failed, in the place of its result."""

    epoch: int
    step: int
    error: ValidationWorkerError


@dataclass
class StepValidations:
    """Validates snapshots inside epochs. Belongs to the training thread.

    One is under way at a time: if it is not finished when the next is due, training waits for it. A result
    is delivered, or an error raised, once the training cannot go back behind it any more: when all earlier
    epochs have been.
    """

    suite: ValidationSuite
    every_steps: int
    deliver: Callable[[StepValidation], None]
    delivered: list[StepValidation] = field(default_factory=list)
    timeout_s: float | None = None  # for one of them
    _pending: PendingEpoch | None = None
    _live: MetricValues = field(default_factory=dict)
    _finished: list[StepValidation | _Failure] = field(default_factory=list)

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

    def wait(self, check: Callable[[], None] = lambda: None) -> None:
        """Waits for the one under way and collects it; calls `check` meanwhile, which may raise."""
        if self._pending is not None:
            self.suite.admit(None)
            self._pending.wait(self.timeout_s, check)
            self._finish()

    def release(self, oldest_epoch: int | None) -> None:
        """Delivers the results that nothing can undo, or raises the error of one that failed."""
        while self._finished and (oldest_epoch is None or self._finished[0].epoch <= oldest_epoch):
            result = self._finished.pop(0)
            if isinstance(result, _Failure):
                raise result.error
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
        epoch, step = pending.epoch, pending.snapshot.step
        try:
            results, _ = self.suite.collect(pending)
        except ValidationWorkerError as error:
            self._finished.append(_Failure(epoch, step, error))
        else:
            self._finished.append(StepValidation(epoch, step, {**prefixed(results), **self._live}))


def deliver_step_validation(callbacks: Iterable[keras.callbacks.Callback], result: StepValidation) -> None:
    """Gives a result to the callbacks that have a method `on_step_validation(step, logs)`."""
    for callback in callbacks:
        listener = getattr(callback, "on_step_validation", None)
        if callable(listener):
            listener(result.step, dict(result.metrics))
