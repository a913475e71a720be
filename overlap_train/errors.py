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

All of them can be pickled and copied with their attributes, notes and chain of causes, so they reach the
parent of a worker process; an attribute that cannot be pickled arrives as its text. Process pools replace
the cause by the worker's traceback; the cause is then in `__context__`.

Each carries a note with the place of its paragraph in `docs/troubleshooting.md`. Python prints it under the
message (from 3.11 on). The reasons of an `OverlapError` carry such places themselves.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
_LONGEST_CHAIN = 32


class OverlapTrainError(Exception):
    """The root of all exceptions of this package."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _note_the_paragraph_of(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (
            [_portable_link(error) for error in (self, *_causes(self))],
            self.__suppress_context__,
        )


class OverlapError(OverlapTrainError):
    """A training would have to wait for its validations, and has `ValidationPolicy(overlap="require")`.

    Attributes:
        reasons: why, each a `records.Reason`; what would change that are its `remedies`.
    """

    def __init__(self, reasons: Sequence[Any]) -> None:
        first = 'overlap="require", but the training would wait because:'
        Exception.__init__(self, "\n".join([first, *map(str, reasons)]))  # each reason names its paragraph
        self.reasons = tuple(reasons)


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
        names = {"__module__": __name__, "__doc__": ValidationWorkerError.__doc__, "_other": other}
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


class _Link(NamedTuple):
    """One of our exceptions without its causes."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: Mapping[str, Any]
    other: Any = None

    def rebuilt(self) -> BaseException:
        # Without the constructor: its keywords are not among the arguments.
        kind = self.kind if self.other is None else _worker_error_that_is(self.other)
        error = kind.__new__(kind, *self.args)
        error.args = self.args
        vars(error).update(self.attributes)
        return error


def _causes(error: BaseException) -> list[BaseException]:
    """Return the chain of causes, nearest first."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and not any(cause is link for link in chain):
        chain.append(cause)
    return chain[1:_LONGEST_CHAIN]


def _portable_link(error: BaseException) -> Any:
    if not isinstance(error, OverlapTrainError):
        return _portable(error)
    attributes = {name: _portable(value) for name, value in vars(error).items()}
    args = tuple(map(_portable, error.args))
    other = vars(type(error)).get("_other")
    if other is None:
        return _Link(type(error), args, attributes)
    # The class of both is made anew there, unless the cause's class exists in this process only.
    return _Link(ValidationWorkerError, args, attributes, other if _portable(other) is other else None)


def _portable(value: Any) -> Any:
    """Return a value that can be pickled: itself, or else its text."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # the classes of others raise anything here
        if isinstance(value, BaseException):
            return RuntimeError(f"{type(value).__module__}.{type(value).__qualname__}: {_text(value, str)}")
        return _text(value, repr)
    return value


def _text(value: Any, to_text: Callable[[Any], str]) -> str:
    try:
        return to_text(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be printed"


def _rebuilt(links: Sequence[Any], suppress_context: bool) -> Any:
    """Make an exception from its links, its own first, then those of its causes."""
    chain = [link.rebuilt() if isinstance(link, _Link) else link for link in links]
    for effect, cause in itertools.pairwise(chain):
        # As context too: `concurrent.futures` and `multiprocessing` overwrite the cause.
        effect.__context__ = effect.__cause__ = cause
    chain[0].__suppress_context__ = suppress_context
    return chain[0]
