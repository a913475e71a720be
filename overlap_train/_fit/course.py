"""Where a fit stands, and where its time goes. On the training thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlap_train._training.settings import Recorder
from overlap_train.monitoring.recorder import Accounts
from overlap_train.records import EpochAccount, Span, StepValidation


@dataclass
class Course:
    """Where a fit stands.

    `first_epoch` is the first that this call of `fit` trains; `step` counts training steps.
    """

    epochs: int
    next_epoch: int
    first_epoch: int = 0
    step: int = 0
    stopped: bool = False
    logs: dict[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """Records what the training thread did when, and to which epoch it counts."""

    recorder: Recorder
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


@dataclass
class FitOutcome:
    """What came of one `fit`; its lists are filled while it runs, `ended` is as `Trainer.ended`."""

    ended: str | None = "failed"
    accounts: list[EpochAccount] = field(default_factory=list)
    epoch_logs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    step_validations: list[StepValidation] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
