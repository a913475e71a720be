"""How many steps go into one call, so that it lasts as long as wished."""

from __future__ import annotations

__all__ = ["Pace"]


class Pace:
    """Learns the time of a step and sizes the calls after it, or gives them a fixed number of steps.

    Calls of a quarter of a second cost nothing in Python and still let bars, interrupts and deliveries come
    in time. The first calls are short, because nothing is known yet and the first one of all includes
    tracing.
    """

    def __init__(self, call_s: float = 0.25, steps_per_call: int | None = None) -> None:
        self._call_s = call_s
        self._fixed = steps_per_call
        self._step_s: float | None = None
        self._calls = 0
        self._next: int | None = None

    @property
    def fixed(self) -> bool:
        """Whether the calls have a size that somebody has set."""
        return self._fixed is not None

    @property
    def step_s(self) -> float | None:
        """Seconds for a step, as last measured; None before the second call."""
        return self._step_s

    def steps(self) -> int:
        """Return how many steps the next call should make."""
        if self._fixed is not None:
            return self._fixed
        if self._next is not None:
            return self._next
        if self._step_s is None:
            return 1 if self._calls == 0 else 4
        return max(1, round(self._call_s / self._step_s))

    def ask(self, steps: int) -> None:
        """Set the size of the next calls until `settle`; what they take is then not learned from."""
        self._next = steps

    def settle(self, step_s: float | None) -> None:
        """Go back to sizing by time, from what a step takes as measured by the caller, in seconds."""
        self._next = None
        self._step_s = step_s if step_s is None else max(step_s, 1e-9)
        self._calls = 0 if step_s is None else 2

    def observe(self, steps: int, seconds: float) -> None:
        """Take in what a call of `steps` steps took."""
        self._calls += 1
        if self._next is not None or self._calls == 1 or steps == 0:
            return
        latest = max(seconds / steps, 1e-9)
        # Within a factor of four at a time: one stalled call must not shrink the next ones to nothing.
        if self._step_s is not None:
            latest = min(max(latest, self._step_s / 4), self._step_s * 4)
        self._step_s = latest
