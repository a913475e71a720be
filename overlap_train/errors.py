"""The exceptions that overlap_train raises besides ValueError and TypeError for bad arguments.

OverlapTrainError
├── OverlapError              a training would wait for its validations, despite overlap="require"
├── ValidationWorkerError     a validation worker failed; the cause is chained (also of the cause's class)
├── ValidationTimeoutError    a validation took longer than its `timeout_s` (also a TimeoutError)
├── DataUnavailableError      a data set is not on disk and cannot be downloaded, or it is damaged
├── CheckpointError           a checkpoint cannot be read or written
│   ├── CheckpointCorruptError   it is damaged: truncated, changed or incomplete
│   └── CheckpointMismatchError  it was written by another model, optimizer or data set
├── NativeUnavailableError    a compiled part cannot be built or loaded here
├── BufferError               a zero-copy buffer cannot do what was asked (also a builtins.BufferError)
│   └── BufferStateError         it was used out of turn
├── ClusterError              a training on several hosts cannot start or continue
│   ├── ClusterConfigError       TF_CONFIG or a port is wrong (also a ValueError)
│   ├── HostMismatchError        a host differs from the chief in code, data, model or arguments
│   └── HostLostError            another host has gone
└── SchedulingError           the scheduler cannot run a request
    ├── DeadlineError            it cannot be done in time
    ├── QueueFullError           a bounded queue was full for too long
    └── SchedulerClosedError     the scheduler, or the model in it, was closed

All of them can be pickled, so they reach the parent of a worker process. As of any exception, the causes stay
behind; a `ValidationWorkerError` arrives without the class and the attributes of its cause.

Each carries a note with the place of its paragraph in `docs/troubleshooting.md`. Python prints it under the
message (from 3.11 on). The reasons of an `OverlapError` carry such places themselves.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Sequence
from typing import Any

__all__ = [
    "BufferError",
    "BufferStateError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointMismatchError",
    "ClusterConfigError",
    "ClusterError",
    "DataUnavailableError",
    "DeadlineError",
    "HostLostError",
    "HostMismatchError",
    "NativeUnavailableError",
    "OverlapError",
    "OverlapTrainError",
    "QueueFullError",
    "SchedulerClosedError",
    "SchedulingError",
    "ValidationTimeoutError",
    "ValidationWorkerError",
]


def __dir__() -> list[str]:
    return sorted(__all__)


PAGE = "docs/troubleshooting.md"


class OverlapTrainError(Exception):
    """The root of all exceptions of this package."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _note_the_paragraph_of(self)


class OverlapError(OverlapTrainError):
    """A training would have to wait for its validations, and has `ValidationPolicy(overlap="require")`.

    Attributes:
        reasons: why, each a `records.Reason`; what would change that are its `remedies`.
    """

    def __init__(self, reasons: Sequence[Any]) -> None:
        first = 'overlap="require", but the training would wait because:'
        Exception.__init__(self, "\n".join([first, *map(str, reasons)]))  # each reason names its paragraph
        self.reasons = tuple(reasons)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reasons,)


class ValidationWorkerError(OverlapTrainError):
    """A validation worker failed; `__cause__` is what it raised.

    Attributes:
        epoch: the epoch whose snapshot was being evaluated, counted from 0.
        shard: which part of the validation set, counted from 0.
    """

    def __init__(self, message: str, *, epoch: int, shard: int) -> None:
        Exception.__init__(self, message)  # and not what it may be besides: see `worker_error`
        _note_the_paragraph_of(self)
        self.epoch = epoch
        self.shard = shard

    def __reduce__(self) -> tuple[Any, ...]:  # whose class may exist in this process only
        make = functools.partial(ValidationWorkerError, epoch=self.epoch, shard=self.shard)
        return make, (str(self),), {"__notes__": list(vars(self)["__notes__"])}

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def worker_error(message: str, *, epoch: int, shard: int, cause: BaseException) -> ValidationWorkerError:
    """Return a `ValidationWorkerError` that is also an instance of its cause's class, where there can be one.

    So `except tf.errors.InvalidArgumentError` catches what it catches under Keras.

    Args:
        message: what failed.
        epoch: whose snapshot was being evaluated, counted from 0.
        shard: which part of the validation set, counted from 0.
        cause: what the worker raised; its attributes become those of the error.
    """
    other: Any = type(cause)
    kind = _worker_error_that_is(other)
    try:
        error = kind.__new__(kind, message)
        vars(error).update(vars(cause))
        vars(error).pop("__notes__", None)
        ValidationWorkerError.__init__(error, message, epoch=epoch, shard=shard)
        str(error)
    except Exception:  # the classes of others raise anything here
        return ValidationWorkerError(message, epoch=epoch, shard=shard)
    return error


@functools.lru_cache(maxsize=64)
def _worker_error_that_is(other: type[BaseException]) -> type[ValidationWorkerError]:
    """Return a class below `ValidationWorkerError` and another, or the former alone where there is none."""
    # A generator that raised StopIteration would end without a word.
    ends = (StopIteration, StopAsyncIteration)
    if not issubclass(other, Exception) or issubclass(other, (*ends, ValidationWorkerError)):
        return ValidationWorkerError
    try:
        names = {"__module__": __name__, "__doc__": ValidationWorkerError.__doc__}
        return type("ValidationWorkerError", (ValidationWorkerError, other), names)
    except Exception:  # two layouts in memory, or a class that refuses to be derived from
        return ValidationWorkerError


class ValidationTimeoutError(OverlapTrainError, TimeoutError):
    """One validation took longer than `ValidationPolicy.timeout_s`."""


class DataUnavailableError(OverlapTrainError):
    """A data set is not on disk and cannot be downloaded, or the copy on disk is damaged."""


class CheckpointError(OverlapTrainError):
    """A checkpoint cannot be read or written."""


class CheckpointCorruptError(CheckpointError):
    """A checkpoint is damaged: truncated, changed or incomplete."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint was written by another model, optimizer or data set."""


class ClusterError(OverlapTrainError):
    """A training on several hosts cannot start or continue."""


class ClusterConfigError(ClusterError, ValueError):
    """The description of the cluster is wrong, or this host cannot take its place in it."""


class HostMismatchError(ClusterError):
    """A host differs from the chief in code, data, model or arguments."""


class HostLostError(ClusterError):
    """Another host is lost; the training can be resumed when all hosts are back."""


class NativeUnavailableError(OverlapTrainError):
    """A compiled part cannot be built or loaded here; the message says what is missing."""


class BufferError(OverlapTrainError, builtins.BufferError):
    """A zero-copy buffer cannot do what was asked."""


class BufferStateError(BufferError):
    """A zero-copy buffer was used out of turn, such as written while TensorFlow reads it."""


class SchedulingError(OverlapTrainError):
    """The scheduler cannot run a request."""


class DeadlineError(SchedulingError):
    """A request was not run, because it would have missed its deadline.

    Attributes:
        predicted_s: seconds from its submission after which it would have been done, or None.
    """

    def __init__(self, *args: Any, predicted_s: float | None = None) -> None:
        super().__init__(*args)
        self.predicted_s = predicted_s


class QueueFullError(SchedulingError):
    """A bounded queue was full for longer than the caller's `timeout_s`."""


class SchedulerClosedError(SchedulingError):
    """The scheduler, or the named model in it, has been closed."""


def _note_the_paragraph_of(error: OverlapTrainError) -> None:
    """Add the place of the paragraph about an error's class, or about the nearest one above that is ours."""
    ours = next(kind for kind in type(error).__mro__ if kind.__module__ == __name__)
    vars(error).setdefault("__notes__", []).append(f"  see {PAGE}#{ours.__name__.lower()}")
