"""What comes of a delivery, and what it asks while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from overlap_train._snapshot import Values
from overlap_train.records import Span, ValidationResult

__all__ = ["BeginNext", "Checks", "Ended", "Outcome", "ValidateAnew"]

ValidateAnew = Callable[[str, int | None], ValidationResult | None]


@dataclass(frozen=True)
class Outcome:
    """What the callbacks of an epoch's end did, and of the next one's beginning.

    Attributes:
        logs: the epoch's logs as the callbacks got them.
        stop: whether the training is to end with this epoch.
        values: what the variables held right after `on_epoch_end`.
        results: of each validation set by its name.
        spans: of validations that were made meanwhile.
        rolled_back: whether the model now stands at the snapshot, with what the callbacks changed, and what
            was trained after it is gone.
        reason: why, in words; None if nothing was changed.
    """

    logs: Mapping[str, Any]
    stop: bool
    values: Values
    results: Mapping[str, ValidationResult] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    rolled_back: bool = False
    reason: str | None = None


Ended = Callable[[Outcome], None]
BeginNext = Callable[[Values], Mapping[int, Any]]


@dataclass(frozen=True)
class Checks:
    """What a delivery asks while it goes on.

    Attributes:
        live_metrics: returns the metrics whose result is a variable itself.
        unsettled: returns why callbacks are to be called otherwise than has been decided, or None.
        validate_anew: called behind `on_test_begin` and the first `on_test_batch_begin` of a validation,
            with the name of the set and how many batches it is to have (None for all); returns its result if
            the validation had to be traced anew, or None.
        validated: called when the validations of an epoch have been shown to the callbacks.
        as_before: called before the callbacks; returns what says, behind them, which attribute of the model
            they have set that an evaluation function may look at, or None.
    """

    live_metrics: Callable[[], frozenset[str]] = frozenset
    unsettled: Callable[[], str | None] = lambda: None
    validate_anew: ValidateAnew = lambda name, most: None
    validated: Callable[[], None] = lambda: None
    as_before: Callable[[], Callable[[], str | None]] = lambda: lambda: None
