"""What crosses threads: frozen records that carry their epoch and step.

All times are seconds of `time.monotonic()`; epochs and steps count from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlap_train._support.answers import Explanation, Verification
from overlap_train._support.imports import public_names
from overlap_train._support.reasons import Reason

__all__ = [
    "EpochAccount",
    "Explanation",
    "FitAccount",
    "MetricValues",
    "Reason",
    "Sample",
    "ShardOutcome",
    "Span",
    "StepValidation",
    "ValidationResult",
    "Verification",
]

__dir__ = public_names(__name__)

TIMELINE = "timeline of overlap_train"  # in the metadata of files that hold spans, which no run repeats
_SHORTEST_S = 0.05  # what a person is shown as more than nothing

MetricValues = Mapping[str, Any]
"""Metrics by name: floats, or arrays where a metric has several values."""


@dataclass(frozen=True, slots=True)
class Span:
    """Record one stretch of work on one thread, for the timeline.

    Attributes:
        name: what was done, such as "train", "snapshot", "validate", "deliver", "wait",
            "rollback", "checkpoint", "trace".
        thread: name of the thread that did it.
        start_s: when it began, in seconds of `time.monotonic()`.
        end_s: when it ended; never before `start_s`.
        epoch: the epoch that it belongs to, or None.
        step: the training step at its beginning, or None.
        details: further facts for the trace viewer, such as `shard` or `steps`.
    """

    name: str
    thread: str
    start_s: float
    end_s: float
    epoch: int | None = None
    step: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """Seconds from the beginning to the end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Sample:
    """Record the load of this process and the GPUs at one moment.

    Attributes:
        time_s: when, in seconds of `time.monotonic()`.
        cpu_percent: CPU load of the process over the last interval; 100 is one core.
        rss_bytes: resident memory of the process.
        gpu_percent: utilisation of each GPU; empty without a GPU.
        gpu_memory_bytes: memory in use on each GPU.
    """

    time_s: float
    cpu_percent: float
    rss_bytes: int
    gpu_percent: tuple[float, ...] = ()
    gpu_memory_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochAccount:
    """Record where the time of one epoch went, in seconds (contract C9).

    Attributes:
        epoch: the epoch, counted from 0.
        steps: training steps of the epoch.
        trained_s: seconds inside training calls.
        validated_s: seconds from the start of the epoch's first validation shard to the end of its last.
        hidden_s: the part of the validation's seconds during which training calls ran.
        waited_s: seconds in which the training thread waited for this epoch's validation, or made it.
        snapshot_s: seconds that the training thread took for the snapshot.
        delivered_s: seconds in which callbacks ran at the epoch's end.
        rolled_back_s: seconds of later epochs that were undone because a callback changed the training when
            it got this epoch's results.
        other_s: the other seconds of the training thread from the epoch's beginning to the next one's: hooks
            of batches, checkpoints.
        skipped: whether the epoch's validation was due and left out.
        slow_host: on several hosts, the number of the host that the others waited for in this epoch, if one
            stands out; 0 is the chief. None otherwise.
        slow_host_s: seconds that they waited for it.
    """

    epoch: int
    steps: int
    trained_s: float
    validated_s: float = 0.0
    hidden_s: float = 0.0
    waited_s: float = 0.0
    snapshot_s: float = 0.0
    delivered_s: float = 0.0
    rolled_back_s: float = 0.0
    other_s: float = 0.0
    skipped: bool = False
    slow_host: int | None = None
    slow_host_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the training thread, all of them: trained, waited, rolled back and the rest."""
        return self.trained_s + self.waited_s + self.rolled_back_s + self.rest_s

    @property
    def rest_s(self) -> float:
        """Seconds of the training thread for the snapshot, callbacks and whatever else."""
        return self.snapshot_s + self.delivered_s + self.other_s


@dataclass(frozen=True, slots=True)
class FitAccount:
    """Record where the time of one `fit` went, in seconds of the thread that called it.

    `prepared_s`, `undelivered_s` and the `seconds` of all `EpochAccount`s add up to `fit_s`.

    Attributes:
        fit_s: seconds of the whole call.
        prepared_s: seconds in which data was read and steps were traced and planned.
        undelivered_s: seconds of epochs whose results were not delivered, because the fit was interrupted or
            failed.
        validated_s: the sum of the epochs' `validated_s`.
        hidden_s: the sum of their `hidden_s`.
        waited_s: the sum of their `waited_s`.
        rolled_back_s: the sum of their `rolled_back_s`.
        saved_s: about how much longer the fit would have taken if it had waited for each validation. That is
            less than `hidden_s` where validation and training slow each other down, and negative where
            running ahead has cost time. None if it cannot be known, as with validations inside epochs.
    """

    fit_s: float
    prepared_s: float
    undelivered_s: float = 0.0
    validated_s: float = 0.0
    hidden_s: float = 0.0
    waited_s: float = 0.0
    rolled_back_s: float = 0.0
    saved_s: float | None = None

    def __str__(self) -> str:
        if not self.validated_s:
            return "nothing was validated"
        parts = [f"validation {self.hidden_s / self.validated_s:.0%} hidden"]
        if self.saved_s is not None and abs(self.saved_s) < _SHORTEST_S:
            parts.append("no time saved")
        elif self.saved_s is not None:
            seconds = f"about {abs(self.saved_s):.1f} s"
            parts.append(f"{seconds} saved" if self.saved_s > 0 else f"running ahead has cost {seconds}")
        parts.append(f"{self.waited_s:.1f} s waited" if self.waited_s >= _SHORTEST_S else "nothing waited")
        if self.rolled_back_s >= _SHORTEST_S:
            parts.append(f"{self.rolled_back_s:.1f} s rolled back")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class StepValidation:
    """Record the result of a validation inside an epoch.

    Attributes:
        epoch: the epoch in which it began, counted from 0.
        step: training steps of the `fit` made until then.
        metrics: the validation metrics, with their prefix `val_`.
    """

    epoch: int
    step: int
    metrics: MetricValues


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Record the result of evaluating a snapshot on one validation set.

    Attributes:
        metrics: the metrics of the whole set, without the prefix `val_`.
        running: the logs and the metrics' variables after each batch, if a callback asked for them.
        metric_state: the metrics' variables after the last batch, in the order of `ModelState.metrics`; empty
            if another host, or a function, has evaluated.
        of_function: whether an `EvaluationFunction` gave it. Then no `on_test_*` is called, and a single
            number has the name "".
        unread: whether `metrics` are the last batch's logs, and Python is still to read the metrics.
    """

    metrics: MetricValues
    running: tuple[Any, ...] = field(default=(), repr=False)
    metric_state: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    of_function: bool = False
    unread: bool = False


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """Record a worker's result and the time of its work.

    Attributes:
        result: a `ShardResult`, or another value that the runner which began the work merges.
        span: the time of the work.
    """

    result: Any
    span: Span
