"""Keras training with validation overlapped: the same numbers, sooner."""

from overlap_train import errors
from overlap_train._version import __version__
from overlap_train.records import EpochAccount, StepValidation
from overlap_train.resume import CheckpointPolicy
from overlap_train.trainer import Trainer
from overlap_train.validation.policy import ValidationPolicy, ValidationSet

__all__ = [
    "CheckpointPolicy",
    "EpochAccount",
    "StepValidation",
    "Trainer",
    "ValidationPolicy",
    "ValidationSet",
    "__version__",
    "errors",
]
