"""What one `fit` consists of, once the trainer has chosen and wired it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import keras

from overlap_train._callbacks.delivery import Delivery
from overlap_train._checkpoint.resume import Resumer
from overlap_train._data.cursor import Cursor
from overlap_train._fit.interrupts import Interrupts
from overlap_train._snapshot import ModelState
from overlap_train._training.loops import Loop
from overlap_train._training.pace import Pace
from overlap_train._training.step import Step
from overlap_train._validation.backlog import Backlog
from overlap_train._validation.python_state import PythonState
from overlap_train._validation.stepwise import StepValidations
from overlap_train._validation.suite import ValidationSuite
from overlap_train.monitoring.accounts import Accounts
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.parallel.hosts import Alone

__all__ = ["Parts", "Schedule"]


@dataclass(frozen=True)
class Schedule:
    """The epochs of a fit, how long a validation may take, and on what terms it may overlap."""

    initial_epoch: int
    epochs: int
    timeout_s: float | None = None
    judges_overlap: bool = False
    streamed: bool = False


@dataclass(frozen=True)
class Parts:
    """What the trainer has built for one `fit`."""

    model: keras.Model
    state: ModelState
    step: Step
    loop: Loop
    cursor: Cursor
    pace: Pace
    suite: ValidationSuite
    backlog: Backlog
    stepwise: StepValidations | None
    delivery: Delivery
    callbacks: Any  # a keras CallbackList, or SharedCallbacks on several hosts
    progress: ProgressReporter
    recorder: SpanRecorder
    accounts: Accounts
    interrupts: Interrupts
    resumer: Resumer | None
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    hosts: Alone = field(default_factory=Alone)
    traced_with: PythonState | None = None  # the validation, if Keras would not have traced it before
