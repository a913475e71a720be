"""Keras training with validation overlapped: the same numbers, sooner."""

from overlap_train import errors
from overlap_train._version import __version__
from overlap_train.configuration import configure
from overlap_train.records import EpochAccount
from overlap_train.trainer import Trainer
from overlap_train.training.plan import ExecutionPlan
from overlap_train.validation.policy import ValidationPolicy

__all__ = [
    "EpochAccount",
    "ExecutionPlan",
    "Trainer",
    "ValidationPolicy",
    "__version__",
    "configure",
    "errors",
]
