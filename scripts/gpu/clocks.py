"""Time on a card: CUDA's events, or the CPU's clock where a CPU stands in for it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Clock", "Samples", "interleave", "median_ratio"]

Samples = dict[str, list[float]]
_LEAST_MS = 0.2  # events resolve half a microsecond
_MOST_REPEATS = 50


class Clock:
    """Measures milliseconds of work on PyTorch's current stream, or by the CPU's clock without PyTorch."""

    def __init__(self, torch: Any | None) -> None:
        self._torch = torch

    @property
    def is_cuda(self) -> bool:
        return self._torch is not None

    def milliseconds(self, work: Callable[[], object], repeats: int = 1) -> float:
        """Return the time of one run, of `repeats` in a row; waits until they are done."""
        if self._torch is None:
            began_s = time.perf_counter()
            for _ in range(repeats):
                work()
            return (time.perf_counter() - began_s) * 1e3 / repeats
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / repeats

    def repeats(self, work: Callable[[], object]) -> int:
        """Warm up, and return how many runs in a row are long enough to be timed."""
        self.milliseconds(work, 3)
        once = max(self.milliseconds(work), 1e-4)
        return max(1, min(_MOST_REPEATS, round(_LEAST_MS / once)))


def interleave(
    clock: Clock, contestants: Mapping[str, Callable[[], object]], *, rounds: int, budget_s: float
) -> Samples:
    """Time contestants in rounds, each in an order of its own; return milliseconds by name, round by round.

    No round is begun after `budget_s`, but there are three at least.
    """
    repeats = {name: clock.repeats(work) for name, work in contestants.items()}
    samples: Samples = {name: [] for name in contestants}
    order, chance = list(contestants), random.Random(0)
    end_s = time.monotonic() + budget_s
    for done in range(rounds):
        if done >= 3 and time.monotonic() > end_s:
            break
        chance.shuffle(order)
        for name in order:
            samples[name].append(clock.milliseconds(contestants[name], repeats[name]))
    return samples


def median_ratio(samples: Samples, slow: str, fast: str) -> float:
    """Return the median of the rounds' ratios, time of `slow` over that of `fast`."""
    return statistics.median(s / f for s, f in zip(samples[slow], samples[fast], strict=True))
