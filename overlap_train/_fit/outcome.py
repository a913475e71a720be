"""What came of one call of `fit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlap_train.records import EpochAccount, StepValidation

__all__ = ["FitOutcome"]


@dataclass
class FitOutcome:
    """What one `fit` has to tell; its lists are filled while it runs.

    Attributes:
        ended: "completed", "stopped" by a callback, "interrupted by" a signal, or "failed"; None before.
        accounts: where the time of each epoch went.
        epoch_logs: of each delivered epoch.
        step_validations: the results of validations inside epochs.
        messages: what was said beside the progress.
    """

    ended: str | None = "failed"
    accounts: list[EpochAccount] = field(default_factory=list)
    epoch_logs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    step_validations: list[StepValidation] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
