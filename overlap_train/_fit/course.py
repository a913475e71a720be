"""Where a fit stands, and where its time goes. On the training thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlap_train.monitoring.recorder import Accounts, SpanRecorder
from overlap_train.records import Span

__all__ = ["Course", "Ledger"]


@dataclass
class Course:
    """Where a fit stands.

    Attributes:
        epochs: where it ends.
        next_epoch: the next one to be trained.
        first_epoch: the first that this call of `fit` has trained.
        step: training steps made so far.
        stopped: whether a callback has stopped the training.
        logs: of each delivered epoch.
    """

    epochs: int
    next_epoch: int
    first_epoch: int = 0
    step: int = 0
    stopped: bool = False
    logs: dict[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """Writes down what the training thread did when, and to which epoch it counts.

    Attributes:
        recorder: keeps the spans of all threads.
        accounts: of the epochs.
        course: whose step the spans carry.
    """

    recorder: SpanRecorder
    accounts: Accounts
    course: Course

    def span(self, name: str, start_s: float, epoch: int, **details: int) -> Span:
        """Records what has just ended."""
        thread = threading.current_thread().name
        span = Span(name, thread, start_s, time.monotonic(), epoch, self.course.step, details)
        self.recorder.add(span)
        return span

    def charge(self, name: str, start_s: float, epoch: int, account: str) -> None:
        """Records what has just ended, and counts it to an epoch."""
        self.accounts.add(epoch, account, self.span(name, start_s, epoch).duration_s)
