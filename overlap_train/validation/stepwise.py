"""Validation after every n training steps, between the ends of epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from overlap_train.records import StepValidation, ValidationResult, prefixed
from overlap_train.snapshot import Snapshot
from overlap_train.validation.pending import PendingEpoch
from overlap_train.validation.suite import ValidationSuite

__all__ = ["StepValidations"]


@dataclass
class StepValidations:
    """Validates snapshots inside epochs. Belongs to the training thread.

    One is under way at a time: if it is not finished when the next is due, training waits for it.

    Attributes:
        every: steps between two.
        deliver: called with each result.
    """

    suite: ValidationSuite
    every: int
    deliver: Callable[[StepValidation], None]
    _pending: PendingEpoch | None = None
    _live: dict[str, ValidationResult] = field(default_factory=dict)

    def steps_left(self, step: int) -> int:
        """Returns how many steps may follow `step` before the next validation is due."""
        return self.every - step % self.every

    def after(self, before: int, step: int, take: Callable[[], Snapshot]) -> None:
        """Begins a validation if one is due, and delivers what is finished.

        Args:
            before: steps that had been made before the last call.
            step: steps that have been made.
            take: takes a snapshot.
        """
        if self._pending is not None and self._pending.ready():
            self._finish()
        if before // self.every != step // self.every:
            self.wait()
            snapshot = take()
            self._live = self.suite.run_live_alone()
            self.suite.hold()
            self._pending = PendingEpoch(snapshot, {}, self.suite.start_all(snapshot))

    def wait(self) -> None:
        """Waits for the one under way and delivers it."""
        if self._pending is not None:
            self.suite.admit(None)
            self._pending.wait(None, lambda: None)
            self._finish()

    def drop_after(self, step: int) -> None:
        """Gives up one that was begun after `step`, because training went back to there."""
        if self._pending is not None and self._pending.snapshot.step > step:
            self._pending.cancel()
            self._pending = None

    def _finish(self) -> None:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        results, _ = self.suite.collect(pending)
        results |= self._live
        self.deliver(StepValidation(pending.epoch, pending.snapshot.step, prefixed(results)))
