"""What a user may decide about validation."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["ValidationPolicy"]

_BACKLOGS = ("block", "skip", "latest")
_ON_CHANGE = ("rollback", "continue")


@dataclass(frozen=True, kw_only=True)
class ValidationPolicy:
    """How the validation runs beside the training.

    Attributes:
        workers: validation threads; each evaluates its part of the validation set. None takes two, or one
            on a single core.
        max_lag: how many later epochs may have begun when an epoch's validation is delivered to the
            callbacks; 0 is what `keras.Model.fit` does.
        backlog: what happens at the end of an epoch whose validation cannot be begun within `max_lag`:
            `"block"` waits.
        on_change: what happens when a delivered callback changed the training: `"rollback"` goes back to
            the snapshot that it saw, so that the result is that of a synchronous run; `"continue"` accepts
            the lag and applies the change to the present weights.
        timeout_s: seconds that one validation may take once the training waits for it; None waits for ever.
        cache_bytes: prepared validation batches of a dataset are kept in memory up to this size.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """

    workers: int | None = None
    max_lag: int = 1
    backlog: str = "block"
    on_change: str = "rollback"
    timeout_s: float | None = None
    cache_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.workers is not None:
            _require_int("workers", self.workers, 1)
        _require_int("max_lag", self.max_lag, 0)
        _require_int("cache_bytes", self.cache_bytes, 0)
        _require_choice("backlog", self.backlog, _BACKLOGS)
        _require_choice("on_change", self.on_change, _ON_CHANGE)
        if self.timeout_s is not None:
            if isinstance(self.timeout_s, bool) or not isinstance(self.timeout_s, (int, float)):
                raise TypeError(f"timeout_s must be a number of seconds or None; got {self.timeout_s!r}")
            if not self.timeout_s > 0:
                raise ValueError(
                    f"timeout_s must be positive, or None to wait for ever; got {self.timeout_s!r}"
                )

    @property
    def resolved_workers(self) -> int:
        """The number of workers, with None decided."""
        return self.workers if self.workers is not None else min(2, os.cpu_count() or 1)


def _require_int(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int; got {value!r} of type {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}; got {value}")


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")
