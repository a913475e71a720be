"""Energy that the machine's own counters measured, and "unavailable" with the reason where it has none.

No power is ever guessed from a data sheet. Counters tick every 10 to 100 ms and the machine's own consumption
drifts, so that a window is at least ten seconds long; `measure` repeats the work until it is, and subtracts
what the idle machine takes, measured over an equal window before.

A measurement belongs to the thread that made it, as its counters do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from overlap_train.monitoring.energy_counters import (
    EnergyCounter,
    JetsonRails,
    Nvml,
    Rapl,
    Unavailable,
    find_counters,
)

__all__ = [
    "MINIMUM_WINDOW_S",
    "EnergyCounter",
    "EnergyReading",
    "JetsonRails",
    "Nvml",
    "Rapl",
    "Unavailable",
    "find_counters",
    "measure",
]

MINIMUM_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Energy that one counter measured.

    Attributes:
        source: which counter, such as "RAPL package-0".
        runs: how often the work was done.
        seconds: length of the window.
        total_j: joules of the window, everything that the counter covers included.
        idle_w: watts of the idle machine just before.
        net_j: `total_j` less the idle machine's share; negative if the difference drowns in noise.
    """

    source: str
    runs: int
    seconds: float
    total_j: float
    idle_w: float
    net_j: float

    @property
    def net_mwh_per_run(self) -> float:
        """Milliwatt hours for one run, the unit of P3."""
        return self.net_j / self.runs / 3.6


class _Counters:
    """Closes counters at the end of a with statement."""

    def __init__(self, counters: Sequence[EnergyCounter]) -> None:
        self._counters = counters

    def __enter__(self) -> Sequence[EnergyCounter]:
        return self._counters

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for counter in self._counters:
            counter.close()


def measure(
    work: Callable[[], object],
    *,
    window_s: float = MINIMUM_WINDOW_S,
    counters: Sequence[EnergyCounter] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[EnergyReading], list[Unavailable]]:
    """Measure what some work costs beyond the idle machine.

    The machine idles for one window, then the work is repeated for another one.

    Args:
        work: does one run, and returns when it is done, on the device too.
        window_s: at least `MINIMUM_WINDOW_S`.
        counters: those to read, which stay open; all of this machine if None.
        clock: returns seconds; for tests.
        sleep: waits for some seconds; for tests.

    Returns:
        A reading of each counter, and for each kind of counter that the machine lacks the reason. Where there
        is no counter at all the work is not run.

    Raises:
        ValueError: if the window is too short.
    """
    if not window_s >= MINIMUM_WINDOW_S:
        raise ValueError(f"window_s must be at least {MINIMUM_WINDOW_S}, got {window_s}: counters are coarse")
    if counters is not None:
        return _measure(work, window_s, counters, clock, sleep), []
    found, missing = find_counters()
    with _Counters(found):
        return _measure(work, window_s, found, clock, sleep), missing


def _measure(
    work: Callable[[], object],
    window_s: float,
    counters: Sequence[EnergyCounter],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[EnergyReading]:
    if not counters:
        return []
    idle_s, idle_j = _window(lambda: sleep(window_s), 0.0, counters, clock)[1:]
    runs, seconds, joules = _window(work, window_s, counters, clock)
    return [
        EnergyReading(
            source=counter.source,
            runs=runs,
            seconds=seconds,
            total_j=total_j,
            idle_w=baseline_j / idle_s,
            net_j=total_j - baseline_j / idle_s * seconds,
        )
        for counter, total_j, baseline_j in zip(counters, joules, idle_j, strict=True)
    ]


def _window(
    work: Callable[[], object],
    window_s: float,
    counters: Sequence[EnergyCounter],
    clock: Callable[[], float],
) -> tuple[int, float, list[float]]:
    """Repeat work until a window is over; returns the runs, the seconds and the joules of each counter."""
    before = [counter.read_j() for counter in counters]
    begin, runs = clock(), 0
    while True:
        work()
        runs += 1
        seconds = clock() - begin
        if seconds >= window_s:
            break
    return runs, seconds, [counter.read_j() - old for counter, old in zip(counters, before, strict=True)]
