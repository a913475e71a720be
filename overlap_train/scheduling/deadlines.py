"""Whether a request can be done in time: how long its model's recent runs took, and what runs before it.

As in Clockwork (Gujarati et al., OSDI 2020), a run of a network takes nearly as long as the one before, so
the last runs predict the next one. Guarded by the lock of the service.
"""

from __future__ import annotations

import heapq
import statistics
from collections import deque
from collections.abc import Iterable, Mapping

__all__ = ["RunTimes", "ends_s"]


class RunTimes:
    """The seconds that recent runs of one model spent in its layers, by their number of examples.

    Without recent ones the first measurement counts again: else a moment of load could have all requests
    refused, and no run would correct that.
    """

    _MOST = 16
    _MEMORY_S = 10.0

    def __init__(self, first_s: Mapping[int, float] | None = None) -> None:
        self._first_s = dict(first_s or {})
        self._recent: dict[int, deque[tuple[float, float]]] = {}

    def add(self, now_s: float, examples: int, seconds: float) -> None:
        """Add what a run took that ended now."""
        self._recent.setdefault(examples, deque(maxlen=self._MOST)).append((now_s, seconds))
        self._first_s.setdefault(examples, seconds)

    def typical_s(self, now_s: float, examples: int) -> float:
        """Return the median for `examples` examples; 0 if nothing is known."""
        return statistics.median(self._seconds(now_s, examples))

    def longest_s(self, now_s: float, examples: int) -> float:
        """Return the longest time for `examples` examples."""
        return max(self._seconds(now_s, examples))

    def _seconds(self, now_s: float, examples: int) -> list[float]:
        """Return the times of the next larger number of examples; beyond the largest they grow with it."""
        if not self._first_s:
            return [0.0]
        largest = max(self._first_s)
        nearest = min((known for known in self._first_s if known >= examples), default=largest)
        recent = [s for at_s, s in self._recent.get(nearest, ()) if now_s - at_s <= self._MEMORY_S]
        return [s * max(examples / nearest, 1.0) for s in recent or [self._first_s[nearest]]]


def ends_s(now_s: float, lengths_s: Iterable[float], lanes: int) -> list[float]:
    """Return when runs end that begin in this order, each on the first of `lanes` that is free."""
    free_s, ends = [now_s] * lanes, []
    for length_s in lengths_s:
        ends.append(free_s[0] + length_s)
        heapq.heapreplace(free_s, ends[-1])
    return ends
