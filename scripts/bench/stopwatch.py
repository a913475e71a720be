"""Times a stretch of a process: its wall clock and its CPU seconds. On the thread that trains."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Stopwatch", "Window"]


@dataclass(frozen=True)
class Window:
    """The timed epochs: from when to when, in seconds of `time.monotonic()`, and their CPU seconds."""

    begin_s: float
    end_s: float
    cpu_s: float


class Stopwatch:
    """Times a window. Started and stopped on the training thread; a second start forgets the first."""

    def start(self) -> None:
        """Begins the window now."""
        self._begin_s, self._begin_cpu_s = time.monotonic(), time.process_time()

    def stop(self) -> Window:
        """Ends the window now."""
        return Window(self._begin_s, time.monotonic(), time.process_time() - self._begin_cpu_s)
