"""How many cores the training leaves idle: so many validation workers may run beside it unnoticed."""

from __future__ import annotations

import statistics
from collections import deque

__all__ = ["IdleCores"]

_LEAST_S = 0.01  # shorter calls are added up: the clock of CPU seconds is coarse
_RECENT = 5


class IdleCores:
    """Learns from training calls beside which nothing else ran. On the training thread.

    More workers at once than there are idle cores would take turns with the training, and each other, on the
    others: the training slows down and the validation is no sooner done.

    Args:
        cores: that this process may use.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._busy: deque[float] = deque(maxlen=_RECENT)
        self._wall_s = self._cpu_s = 0.0

    def observe(self, wall_s: float, cpu_s: float) -> None:
        """Takes in a call: how long it took, and the CPU seconds of the whole process meanwhile."""
        self._wall_s += wall_s
        self._cpu_s += cpu_s
        if self._wall_s >= _LEAST_S:
            self._busy.append(self._cpu_s / self._wall_s)
            self._wall_s = self._cpu_s = 0.0

    @property
    def left(self) -> float | None:
        """What the training leaves, in cores, at least 0; None as long as nothing is known."""
        return max(0.0, self._cores - statistics.median(self._busy)) if self._busy else None

    @property
    def count(self) -> int:
        """Idle cores, at least 1; half of all as long as nothing is known."""
        left = self.left
        return max(1, round(self._cores / 2 if left is None else left))
