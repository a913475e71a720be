"""Whether overlapping pays: what is hidden must not be bought one for one with slower training.

Where training leaves no core idle, a validation beside it slows it down by what the validation would have
cost alone. Both can be measured: the training calls of a fit run partly beside workers and partly not, and
now and then an epoch may be validated in step with the training.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from overlap_train.monitoring.recorder import overlap_s
from overlap_train.records import Span

__all__ = ["OverlapGain", "OverlapJudge"]

# Seconds by which a training is slower for each processor second taken from it: the threads of an operation
# wait for the slowest of them, and share the caches.
_MOST_PAID = 1.5


@dataclass(frozen=True, slots=True)
class OverlapGain:
    """What overlapping is worth, per validation.

    Attributes:
        alone_s: seconds that a validation takes while the training waits for it.
        paid_s: seconds by which the training is slower for a validation beside it.
    """

    alone_s: float
    paid_s: float

    @property
    def saved_s(self) -> float:
        """Seconds gained for each validation; negative if overlapping costs."""
        return self.alone_s - self.paid_s


class OverlapJudge:
    """Compares epochs validated beside the training with epochs validated alone. On the training thread.

    Args:
        epochs: epochs validated beside the training to look at before judging.
        least_share: the smallest part of a validation alone that has to be saved, as a lag has its price.
    """

    def __init__(self, *, epochs: int = 2, least_share: float = 0.03) -> None:
        self._epochs = epochs
        self._least_share = least_share
        self._disturbed: list[list[tuple[float, int]]] = []
        self._undisturbed: list[float] = []
        self._alone: list[float] = []
        self._cpu: list[float] = []

    @property
    def wants_alone(self) -> bool:
        """Whether enough was seen beside the training, and one validation alone would allow to judge."""
        return len(self._disturbed) >= self._epochs and not self._alone and len(self._undisturbed) > 1

    def observe_beside(self, trained: Sequence[tuple[Span, int]], validated: Sequence[Span]) -> None:
        """Takes in an epoch that was validated while the next one trained.

        Args:
            trained: the training calls from the beginning of that validation to the end of the next epoch,
                with their numbers of steps; calls that traced something are to be left out.
            validated: the spans of all workers.
        """
        disturbed = []
        for span, steps in trained:
            if steps == 0 or span.duration_s <= 0:
                continue
            if overlap_s([span], validated) > 0:
                disturbed.append((span.duration_s, steps))
            else:
                self._undisturbed.append(span.duration_s / steps)
        if disturbed:
            self._disturbed.append(disturbed)

    def observe_alone(self, seconds: float, cpu_s: float | None = None) -> None:
        """Takes in how long a validation took while the training waited for it.

        Args:
            seconds: by the clock.
            cpu_s: the processor seconds of the whole process meanwhile; None if the validation computes
                elsewhere too.
        """
        self._alone.append(seconds)
        if cpu_s is not None:
            self._cpu.append(cpu_s)

    def gain(self) -> OverlapGain | None:
        """Returns what overlapping is worth, or None while there is nothing to compare."""
        if not self._alone or not self._disturbed or len(self._undisturbed) < 2:
            return None
        step_s = statistics.median(self._undisturbed)
        paid = [sum(duration_s - steps * step_s for duration_s, steps in calls) for calls in self._disturbed]
        paid_s = statistics.median(paid)
        if self._cpu:
            # What hardly computes cannot slow the training: then somebody else did.
            paid_s = min(paid_s, _MOST_PAID * statistics.median(self._cpu))
        return OverlapGain(statistics.median(self._alone), paid_s)

    def pays(self) -> bool | None:
        """Whether to go on overlapping; None as long as too little has been seen to say."""
        gain = self.gain()
        if gain is None or len(self._disturbed) < self._epochs:
            return None
        return gain.saved_s >= self._least_share * gain.alone_s
