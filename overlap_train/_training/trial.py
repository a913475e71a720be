"""A candidate while real steps are timed on it."""

from __future__ import annotations

import math

from overlap_train._training.disturbance import Disturbance
from overlap_train._training.expectations import steps_of_a_timed_call
from overlap_train._training.plan_cache import Candidate, CandidateTiming

__all__ = ["TIMED_CALLS", "Trial"]

TIMED_CALLS = 2
# The first call traces and compiles, the second finds caches and allocators as the loop before left them.
_UNTIMED_CALLS = 2


class Trial:
    """Collects what the calls of one candidate took. On the training thread."""

    def __init__(
        self, candidate: Candidate, *, was_traced: bool, before: CandidateTiming | None = None
    ) -> None:
        self.candidate = candidate
        self.was_traced = was_traced
        self.build_s = 0.0
        self.steps_asked = 1
        self.calls = 0
        self._before = before
        self._first_steps = 1
        self._step_s = math.inf
        self._timed = 0
        self._watch = Disturbance()
        if before is not None:
            self.calls, self.steps_asked = 1, steps_of_a_timed_call(before.step_s)

    @property
    def over(self) -> bool:
        """Whether it has been timed."""
        return self._timed >= TIMED_CALLS

    def take(self, steps: int, seconds: float) -> None:
        """Count a call."""
        self.calls += 1
        if self.calls == 1:
            self.build_s += seconds
            self._first_steps = max(1, steps)
            self.steps_asked = 4
        elif steps >= min(self.steps_asked, 3):
            if self.calls > _UNTIMED_CALLS:
                self._timed += 1
            self._step_s = min(self._step_s, seconds / steps)
            self.steps_asked = steps_of_a_timed_call(self._step_s)

    def result(self) -> CandidateTiming:
        """Return what the candidate cost; not to be counted as a run's if others disturbed it."""
        runs = 0 if math.isfinite(self._step_s) and self._watch.found() else 1
        if self._before is not None:
            # What one of two looks saw undisturbed holds for both.
            return CandidateTiming(
                self._before.build_s, min(self._step_s, self._before.step_s), max(runs, self._before.runs)
            )
        steps_s = (self._first_steps - 1) * min(self._step_s, self.build_s)
        return CandidateTiming(max(0.0, self.build_s - steps_s), self._step_s, runs)
