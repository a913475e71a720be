"""The exceptions that overlap_train raises beside ValueError and TypeError for bad arguments.

OverlapTrainError
├── ValidationWorkerError     a validation worker failed; the cause is chained
├── ValidationTimeoutError    a validation took longer than its `timeout_s` (also a TimeoutError)
├── DataUnavailableError      a data set is neither on disk nor to be had, or it is damaged
├── CheckpointError           a checkpoint cannot be used
│   ├── CheckpointCorruptError   it is damaged: truncated, changed or incomplete
│   └── CheckpointMismatchError  it was written by another model, optimizer or data set
├── NativeUnavailableError    a compiled part cannot be built or loaded here
├── BufferError               a zero-copy buffer cannot do what was asked (also a builtins.BufferError)
│   └── BufferStateError         it was used out of turn
├── ClusterError              a training on several hosts cannot start or go on
│   ├── ClusterConfigError       TF_CONFIG or a port is wrong (also a ValueError)
│   ├── HostMismatchError        a host differs from the chief in code, data, model or arguments
│   └── HostLostError            another host has gone
└── SchedulingError           the scheduler cannot run a request
    ├── QueueFullError           a bounded queue was full for too long
    └── SchedulerClosedError     the scheduler, or the model in it, was closed
"""

from __future__ import annotations

import builtins

__all__ = [
    "BufferError",
    "BufferStateError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointMismatchError",
    "ClusterConfigError",
    "ClusterError",
    "DataUnavailableError",
    "HostLostError",
    "HostMismatchError",
    "NativeUnavailableError",
    "OverlapTrainError",
    "QueueFullError",
    "SchedulerClosedError",
    "SchedulingError",
    "ValidationTimeoutError",
    "ValidationWorkerError",
]


class OverlapTrainError(Exception):
    """The root of all exceptions of this package."""


class ValidationWorkerError(OverlapTrainError):
    """A validation worker failed; `__cause__` is what it raised.

    Attributes:
        epoch: the epoch whose snapshot was being evaluated, counted from 0.
        shard: which part of the validation set, counted from 0.
    """

    def __init__(self, message: str, *, epoch: int, shard: int) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.shard = shard


class ValidationTimeoutError(OverlapTrainError, TimeoutError):
    """One validation took longer than `ValidationPolicy.timeout_s`."""


class DataUnavailableError(OverlapTrainError):
    """A data set is neither on disk nor to be had, or the copy on disk is damaged."""


class CheckpointError(OverlapTrainError):
    """A checkpoint cannot be used."""


class CheckpointCorruptError(CheckpointError):
    """A checkpoint is damaged: truncated, changed or incomplete."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint was written by another model, optimizer or data set."""


class ClusterError(OverlapTrainError):
    """A training on several hosts cannot start or go on."""


class ClusterConfigError(ClusterError, ValueError):
    """The description of the cluster is wrong, or this host cannot take its place in it."""


class HostMismatchError(ClusterError):
    """A host differs from the chief in code, data, model or arguments."""


class HostLostError(ClusterError):
    """Another host has gone; the training can be resumed when all are back."""


class NativeUnavailableError(OverlapTrainError):
    """A compiled part cannot be built or loaded here; the message says what is missing."""


class BufferError(OverlapTrainError, builtins.BufferError):
    """A zero-copy buffer cannot do what was asked."""


class BufferStateError(BufferError):
    """A zero-copy buffer was used out of turn, such as written while TensorFlow reads it."""


class SchedulingError(OverlapTrainError):
    """The scheduler cannot run a request."""


class QueueFullError(SchedulingError):
    """A bounded queue was full for longer than the caller was ready to wait."""


class SchedulerClosedError(SchedulingError):
    """The scheduler, or the model in it that was named, has been closed."""
