"""What comes of a delivery, and what it asks while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from overlap_train._snapshot import Values
from overlap_train.records import Span, ValidationResult

__all__ = ["BeginNext", "Begun", "Checks", "Ended", "Outcome", "ValidateAnew"]

ValidateAnew = Callable[[str, int | None], ValidationResult | None]


@dataclass(frozen=True)
class Outcome:
    """What the callbacks of an epoch's end did, and of the next one's beginning."""

    logs: Mapping[str, Any]  # as the callbacks got them
    stop: bool  # the training is to end with this epoch
    values: Values  # of the variables right behind `on_epoch_end`
    results: Mapping[str, ValidationResult] = field(default_factory=dict)  # by the set's name
    spans: tuple[Span, ...] = ()  # of validations that were made meanwhile
    rolled_back: bool = False  # the model stands at the snapshot, with what the callbacks changed
    reason: str | None = None  # why it would, in words


@dataclass(frozen=True)
class Begun:
    """What is known behind an `on_epoch_begin` that was called in a delivery."""

    # With which the epoch was trained if schedules set them, by their places in `Values.flat`.
    rates: Mapping[int, Any]
    # The name of a metric's variable that was set, as by an `evaluate`: the epoch has to go on from that.
    metric: str | None = None


Ended = Callable[[Outcome], None]
BeginNext = Callable[[Values], Begun]


@dataclass(frozen=True)
class Checks:
    """What a delivery asks while it goes on."""

    # The metrics whose result is a variable itself.
    live_metrics: Callable[[], frozenset[str]] = frozenset
    # Why callbacks are to be called otherwise than has been decided, or None.
    unsettled: Callable[[], str | None] = lambda: None
    # Called behind the first hooks of a validation, with the name of the set and how many batches it is to
    # have (None for all); returns its result if the validation had to be traced anew.
    validate_anew: ValidateAnew = lambda name, most: None
    # Called when the validations of an epoch have been shown to the callbacks.
    validated: Callable[[], None] = lambda: None
    # Called before the callbacks; returns what says, behind them, which attribute of the model they have set
    # that an evaluation function may look at, or None.
    as_before: Callable[[], Callable[[], str | None]] = lambda: lambda: None
