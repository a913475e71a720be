"""Where a fit stands, and where its time goes. On the training thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from overlap_train._training.settings import Recorder
from overlap_train.monitoring.recorder import Accounts, EpochAccounts, SpanRecorder
from overlap_train.records import FitAccount, Span, StepValidation


@dataclass
class Course:
    """Where a fit stands."""

    epochs: int
    next_epoch: int
    step: int = 0  # training steps so far
    stopped: bool = False
    logs: dict[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """Records what the training thread did when, and to which epoch it counts."""

    recorder: Recorder
    accounts: Accounts
    course: Course

    def span(self, name: str, start_s: float, epoch: int | None, **details: int) -> Span:
        """Records what has just ended."""
        thread = threading.current_thread().name
        span = Span(name, thread, start_s, time.monotonic(), epoch, self.course.step, details)
        self.recorder.add(span)
        return span

    def charge(self, name: str, start_s: float, epoch: int, account: str) -> None:
        """Records what has just ended, and counts it to an epoch."""
        self.accounts.charge(epoch, account, self.span(name, start_s, epoch).duration_s)


@dataclass
class FitOutcome:
    """What came of one `fit`; its lists are filled while it runs."""

    ended: str | None = "failed"  # or "completed", "stopped", "interrupted by" a signal; None before
    accounts: EpochAccounts = field(default_factory=EpochAccounts)
    account: FitAccount | None = None  # before the end
    start_s: float = field(default_factory=time.monotonic)  # when `fit` was called
    step_validations: list[StepValidation] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def take(self, ledger: Ledger, history: keras.callbacks.History | None) -> None:
        """Takes in the accounts until now, and shows them in the `History`."""
        recorder = ledger.recorder
        spans = None  # not all validations count, or not all spans are kept
        if isinstance(recorder, SpanRecorder) and not (recorder.dropped or self.step_validations):
            spans = recorder.spans()
        epochs = ledger.accounts.closed()
        self.account = ledger.accounts.fit(epochs, spans)
        self.accounts = EpochAccounts(epochs, ledger.course.logs, self.account)
        if history is not None:
            history.ended, history.accounts, history.account = self.ended, self.accounts, self.account
