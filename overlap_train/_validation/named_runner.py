"""What evaluates one validation set, or calls one evaluation function, as a suite needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from overlap_train._snapshot import Snapshot, Values
from overlap_train._support.reasons import Reason
from overlap_train._validation.pending import PendingValidation
from overlap_train.records import ShardOutcome, ValidationResult

__all__ = ["NamedRunner", "Runner"]


class Runner(Protocol):
    """What evaluates one set, or calls one function.

    A `ValidationRunner`, an `Evaluator`, a `LiveRunner` or a `FunctionRunner`.
    """

    @property
    def in_step(self) -> Reason | None:
        """Why training must not run ahead of these validations, or None."""

    @property
    def rewindable(self) -> bool:
        """Whether a validation can be made again."""

    @property
    def runs_python(self) -> bool:
        """Whether a validation runs code of the user's, which may see what callbacks keep."""

    @property
    def live(self) -> bool:
        """Whether it evaluates the model as it is, at delivery, and not snapshots: a `LiveRunner`."""

    @property
    def computes_here(self) -> bool:
        """Whether the processors that a validation takes are this process's."""

    def start(self, snapshot: Snapshot) -> list[Future[ShardOutcome]]:
        """Begins to evaluate a snapshot; the futures are in the order of the parts."""

    def evaluate(self, values: Values, most: int | None = None) -> ValidationResult:
        """Evaluates values now.

        Args:
            values: to be evaluated.
            most: batches, the first ones; None for all.
        """

    def evaluate_one_batch(self, values: Values) -> None:
        """Evaluates the first batch, or raises what goes wrong with it."""

    def merge(self, results: list[Any], values: Values) -> ValidationResult:
        """Returns the metrics of the whole from those of the parts."""

    def warn(self, results: Sequence[Any] = ()) -> None:
        """Warns of what was odd about a validation. On the training thread.

        Args:
            results: of its parts; it is the last one if there are none.
        """

    def close(self) -> None:
        """Ends what the data began."""


@dataclass(frozen=True)
class NamedRunner:
    """A validation set.

    Attributes:
        name: prefix of its metrics, "" if there is only one set.
        runner: evaluates it.
        validates: whether an epoch, counted from 0, is validated on it.
        is_function: whether it is an evaluation function beside the training.
    """

    name: str
    runner: Runner
    validates: Callable[[int], bool]
    is_function: bool = False

    def start(self, snapshot: Snapshot) -> PendingValidation:
        """Begins to evaluate a snapshot."""
        return PendingValidation(snapshot.epoch, self.name, self.runner.start(snapshot), self.is_function)
