"""F: what evaluates a snapshot, and an epoch that waits for its delivery with these validations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from overlap_train._snapshot import Snapshot, Values
from overlap_train._support.printing import error_message
from overlap_train._support.reasons import Reason
from overlap_train.errors import ValidationTimeoutError, worker_error
from overlap_train.records import ShardOutcome, ValidationResult

__all__ = ["NamedRunner", "PendingEpoch", "PendingValidation", "Runner", "merged_by_worker"]


@dataclass
class PendingValidation:
    """One snapshot on one validation set. Belongs to the training thread."""

    epoch: int
    name: str
    shards: Sequence[Future[ShardOutcome]]
    is_function: bool = False

    @property
    def done(self) -> int:
        """How many parts are finished."""
        return sum(future.done() for future in self.shards)

    def ready(self) -> bool:
        """Whether every part is finished, or one has failed so that waiting for others is of no use."""
        return self.done == len(self.shards) or self._failed() is not None

    def begun(self) -> bool:
        """Whether a worker has taken up any part."""
        return any(future.running() or future.done() for future in self.shards)

    def outcomes(self) -> list[ShardOutcome]:
        """Returns the parts' results in their order; call it when `ready`."""
        failed = self._failed()
        if failed is not None:
            shard, error = failed
            where = f"on set {self.name!r} " if self.name else ""
            raise worker_error(
                f"validating epoch {self.epoch + 1} {where}failed in part {shard + 1} of {len(self.shards)}: "
                f"{type(error).__name__}: {_cause(error)}",
                epoch=self.epoch,
                shard=shard,
                cause=error,
            ) from error
        return [future.result() for future in self.shards]

    def cancel(self) -> None:
        """Drops the parts that have not begun."""
        for future in self.shards:
            future.cancel()

    def _failed(self) -> tuple[int, BaseException] | None:
        for shard, future in enumerate(self.shards):
            if future.done() and not future.cancelled():
                error = future.exception()
                if error is not None:
                    return shard, error
        return None


class Runner(Protocol):
    """Evaluates one validation set, or calls one evaluation function; each kind has some of this."""

    @property
    def in_step(self) -> Reason | None:
        """Why training must not run ahead of these validations, or None."""
        return None

    @property
    def rewindable(self) -> bool:
        """Whether a validation can be made again."""
        return True

    @property
    def runs_python(self) -> bool:
        """Whether a validation runs code of the user's, which may see what callbacks keep."""
        return True

    @property
    def computes_here(self) -> bool:
        """Whether the processors that a validation takes are this process's."""
        return True

    def start(self, snapshot: Snapshot) -> list[Future[ShardOutcome]]:
        """Begins to evaluate a snapshot; the futures are in the order of the parts."""
        return []

    def evaluate(self, values: Values, most: int | None = None) -> ValidationResult:
        """Evaluates values now: all batches, or the first ones."""
        raise TypeError(f"a {type(self).__name__} evaluates no values of the moment")

    def evaluate_alone(self, values: Values, most: int | None = None) -> ValidationResult:
        """Evaluates values now, without the other hosts of the training."""
        return self.evaluate(values, most)

    def merge(self, results: list[Any], values: Values) -> ValidationResult:
        """Returns the metrics of the whole from those of the parts."""
        raise TypeError(f"a {type(self).__name__} has no parts")

    def warn(self, results: Sequence[Any] = ()) -> None:
        """Warns of what was odd about a validation. On the training thread."""
        return

    def close(self) -> None:
        """Ends what the data began."""
        return


@dataclass(frozen=True)
class NamedRunner:
    """A validation set."""

    name: str  # prefix of its metrics, "" if there is only one set
    runner: Runner
    validates: Callable[[int], bool]  # whether an epoch, counted from 0, is validated on it
    is_function: bool = False  # whether it is an evaluation function with a thread of its own

    def start(self, snapshot: Snapshot) -> PendingValidation:
        """Begins to evaluate a snapshot."""
        return PendingValidation(snapshot.epoch, self.name, self.runner.start(snapshot), self.is_function)


@dataclass
class PendingEpoch:
    """A trained epoch that waits for its delivery. Belongs to the training thread."""

    snapshot: Snapshot
    train_logs: Mapping[str, float]  # the training metrics of the epoch, nested as the step returned them
    validations: Sequence[PendingValidation] = field(default_factory=tuple)
    stops: bool = False
    skipped: bool = False
    start: Callable[[], Sequence[PendingValidation]] | None = None

    @property
    def epoch(self) -> int:
        return self.snapshot.epoch

    def stands_at(self, position: Any) -> None:
        """Takes the position in the training data as the callbacks of the epoch leave it."""
        if position is not self.snapshot.position:
            self.snapshot = replace(self.snapshot, position=position)

    @property
    def shards(self) -> list[Future[ShardOutcome]]:
        """The parts of all its validations."""
        return [future for validation in self.validations for future in validation.shards]

    @property
    def is_validated(self) -> bool:
        """Whether it has a validation, begun or to be begun."""
        return self.start is not None or bool(self.validations)

    def begin(self) -> None:
        """Begins its validations if that is still to be done."""
        if self.start is not None:
            self.validations, self.start = self.start(), None

    def ready(self) -> bool:
        """Whether it can be delivered without waiting."""
        return self.start is None and all(validation.ready() for validation in self.validations)

    def wait(self, timeout_s: float | None, check: Callable[[], None]) -> None:
        """Waits until `ready`."""
        start_s = time.monotonic()
        while not self.ready():
            check()
            left = 0.1 if timeout_s is None else min(0.1, start_s + timeout_s - time.monotonic())
            if left <= 0:
                raise ValidationTimeoutError(
                    f"validating epoch {self.epoch + 1} did not end within timeout_s={timeout_s:g}: "
                    f"{self._unfinished()}, or raise ValidationPolicy(timeout_s=...)"
                )
            unfinished = [future for future in self.shards if not future.done()]
            wait(unfinished, timeout=left, return_when="FIRST_COMPLETED")

    def _unfinished(self) -> str:
        """Says what a wait was in vain for, and what to look at."""
        late = [validation for validation in self.validations if not validation.ready()]
        functions = [repr(validation.name) for validation in late if validation.is_function]
        named = f"of evaluation function {' and '.join(functions)}"
        if functions and len(functions) == len(late):
            return f"there is no value yet {named}; look for what it waits for"
        unfinished = sum(not future.done() for future in self.shards)
        told = f"{unfinished} of {len(self.shards)} parts were not done"
        told += f", that {named} among them" if functions else ""
        return f"{told}; check whether the validation data ends"

    def leave_out(self) -> None:
        """Gives its validations up."""
        self.cancel()
        self.validations = ()
        self.skipped = True

    def cancel(self) -> None:
        """Drops what has not begun."""
        self.start = None
        for validation in self.validations:
            validation.cancel()


def merged_by_worker(outcomes: Sequence[ShardOutcome]) -> ValidationResult | None:
    """Returns the metrics of the whole, if the worker that came last has merged them."""
    return next((outcome.whole for outcome in outcomes if outcome.whole is not None), None)


# What TensorFlow puts before the cause.
_PREAMBLE = re.compile(
    r"Graph execution error|Detected at node|<stack traces|Traceback|File |\s|\d+ root error"
)
# On a GPU TensorFlow may count what failed at once: "2 root error(s) found.", "  (0) UNKNOWN:  disk gone".
_NOT_ITS_OWN_WORDS = re.compile(r"\{\{.*?\}\}\s*|^\s*\(\d+\) [A-Z_]+:\s*")


def _cause(error: BaseException) -> str:
    """Returns the first line of a message that says what went wrong."""
    lines = [_NOT_ITS_OWN_WORDS.sub("", line) for line in error_message(error).splitlines()]
    telling = [line for line in lines if line.strip() and not _PREAMBLE.match(line)]
    return (telling or [error_message(error).strip() or "(no message)"])[0][:300]
