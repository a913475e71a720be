"""F: what evaluates a snapshot, and an epoch that waits for its delivery with these validations."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from overlap_train._snapshot import Snapshot, Values
from overlap_train._support.printing import error_message
from overlap_train._support.reasons import Reason
from overlap_train.errors import ValidationTimeoutError, worker_error
from overlap_train.records import ShardOutcome, Span, ValidationResult


@dataclass
class PendingValidation:
    """One snapshot on one validation set. Belongs to the training thread."""

    epoch: int
    name: str
    shards: Sequence[Future[ShardOutcome]]

    def ready(self) -> bool:
        """Whether every part is finished, or one has failed so that waiting for others is of no use."""
        return all(future.done() for future in self.shards) or self._failure() is not None

    def begun(self) -> bool:
        """Whether a worker has taken up any part."""
        return any(future.running() or future.done() for future in self.shards)

    def outcomes(self) -> list[ShardOutcome]:
        """Returns the parts' results in their order; call it when `ready`."""
        failure = self._failure()
        if failure is not None:
            shard, error = failure
            raise worker_error(
                f"validating epoch {self.epoch + 1} {on_set(self.name)}failed in part {shard + 1} of "
                f"{len(self.shards)}: {type(error).__name__}: {_cause(error)}",
                epoch=self.epoch,
                shard=shard,
                cause=error,
            ) from error
        return [future.result() for future in self.shards]

    def cancel(self) -> None:
        """Drops the parts that have not begun."""
        for future in self.shards:
            future.cancel()

    def _failure(self) -> tuple[int, BaseException] | None:
        """Returns the first part that failed, and its error."""
        for shard, future in enumerate(self.shards):
            error = future.exception() if future.done() and not future.cancelled() else None
            if error is not None:
                return shard, error
        return None


def on_set(name: str) -> str:
    """Names a set inside a message; a single set has no name."""
    return f"on set {name!r} " if name else ""


def span_since(start_s: float, snapshot: Snapshot | None, **details: Any) -> Span:
    """Returns the span of a validation on this thread, from its start to now."""
    epoch, step = (None, None) if snapshot is None else (snapshot.epoch, snapshot.step)
    return Span("validate", threading.current_thread().name, start_s, time.monotonic(), epoch, step, details)


class Runner:
    """Evaluates one validation set, or calls one evaluation function; each kind overrides what it has."""

    in_step: Reason | None = None  # why training must not run ahead of these validations
    rewindable = True  # whether a validation can be made again
    draws_anew = True  # whether batches are made anew, which must not be for an epoch that is rolled back
    runs_python = True  # whether a validation runs the user's code, which may see what callbacks keep

    def start(self, snapshot: Snapshot) -> list[Future[ShardOutcome]]:
        """Begins to evaluate a snapshot; the futures are in the order of the parts."""
        return []

    def evaluate(self, values: Values, *, alone: bool = False) -> ValidationResult:
        """Evaluates values now; `alone` leaves out the other hosts."""
        raise NotImplementedError

    def merge(self, outcomes: Sequence[ShardOutcome], values: Values) -> ValidationResult:
        """Returns the metrics of the whole set from the outcomes of its parts."""
        result: ValidationResult = outcomes[-1].result
        return result

    def warn(self, results: Sequence[Any] = ()) -> None:
        """Warns of what was odd about a validation. On the training thread."""

    def close(self) -> None:
        """Ends what the data began."""


@dataclass(frozen=True)
class NamedRunner:
    """A validation set."""

    name: str  # prefix of its metrics, "" if there is only one set
    runner: Runner
    validates: Callable[[int], bool]  # whether an epoch, counted from 0, is validated on it


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
        """Waits until `ready`; calls `check` again and again, which may raise."""
        start_s = time.monotonic()
        while not self.ready():
            check()
            left_s = 0.1 if timeout_s is None else min(0.1, start_s + timeout_s - time.monotonic())
            if left_s <= 0:
                raise ValidationTimeoutError(
                    f"validating epoch {self.epoch + 1} did not end within timeout_s={timeout_s:g}: "
                    f"{self._unfinished()}, or raise ValidationPolicy(timeout_s=...)"
                )
            wait([f for f in self.shards if not f.done()], timeout=left_s, return_when="FIRST_COMPLETED")

    def _unfinished(self) -> str:
        """Says what a wait was in vain for, and what to look at."""
        late = [each for each in self.validations if not each.ready()]
        done = [future.done() for each in late for future in each.shards]
        names = " and ".join(repr(each.name) for each in late if each.name) or "the validation"
        return (
            f"{done.count(False)} of {len(done)} parts of {names} were not done; look for what the data or "
            "the function waits for"
        )

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
