"""Whether other programs took cores away while something was timed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

__all__ = ["Disturbance"]

# Others disturb when they have this part of the machine's time and hardly anything is left over.
_OTHERS, _LEFT = 0.1, 0.1
_LEAST_S = 0.05  # the system's clocks are coarse


@dataclass(frozen=True, slots=True)
class _Seconds:
    """CPU seconds so far: of this process, of all others, and of nobody."""

    own: float
    others: float
    idle: float


class Disturbance:
    """Watches the machine from its making on.

    A machine that has cores left over does not count as disturbed, whoever is at work on the rest: of a
    large one, a container may have but a few, and still sees all.
    """

    def __init__(self) -> None:
        self._before = _seconds()
        self._start_s = time.perf_counter()

    def found(self) -> bool:
        """Return whether others have competed for the cores; False where the system does not tell."""
        now = _seconds()
        if self._before is None or now is None or time.perf_counter() - self._start_s < _LEAST_S:
            return False
        others, idle = now.others - self._before.others, now.idle - self._before.idle
        total = now.own - self._before.own + others + idle
        return others > _OTHERS * total and idle < _LEFT * total


def _seconds() -> _Seconds | None:
    import psutil  # takes 15 ms, which a run that times nothing does not pay

    try:
        machine = psutil.cpu_times()
    except (OSError, psutil.Error, NotImplementedError, RuntimeError):
        return None
    times = os.times()
    own = times.user + times.system
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    # What guests compute is in the times of user and nice already.
    guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
    return _Seconds(own, sum(machine) - guests - idle - own, idle)
