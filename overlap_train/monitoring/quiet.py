"""What a fit tells of itself while it runs, shown nowhere. On the training thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overlap_train._support.closing import Closing

PendingValidation = tuple[int, int, int]
"""(epoch, shards done, shards)."""


class QuietProgress(Closing):
    """Keep the messages of a fit and show nothing, as with `verbose=0`.

    Attributes:
        messages: the texts passed to `message`, in order.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []

    def preparing(self, what: str) -> None:
        """Take in what is being traced or compiled."""

    def epoch_begin(self, epoch: int) -> None:
        """Take in that an epoch begins, or begins again after a rollback."""

    def steps_done(self, epoch: int, step: int, metrics: Callable[[], Mapping[str, Any]]) -> None:
        """Take in that `step` steps of the epoch are done."""

    def validation_pending(self, pending: list[PendingValidation]) -> None:
        """Take in which validations have not been delivered yet."""

    def epoch_trained(self, epoch: int, metrics: Mapping[str, Any], seconds: float) -> None:
        """Take in that the steps of an epoch are done."""

    def epoch_delivered(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Take in what validation and callbacks have added to an epoch."""

    def message(self, text: str, *, detail: bool = False) -> None:
        """Keep a notice; a detail, such as the plan, is shown with `verbose=2` only."""
        self.messages.append(text)

    def close(self) -> None:
        """Show what is left to be shown; does nothing the second time."""
