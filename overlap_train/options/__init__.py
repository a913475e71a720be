"""What users set: validation, execution of the steps, checkpoints, thread pools, how a callback is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.imports import lazy_names

if TYPE_CHECKING:
    from overlap_train.options.checkpoint import CheckpointPolicy
    from overlap_train.options.epoch_only import EpochOnly
    from overlap_train.options.execution import ExecutionPlan
    from overlap_train.options.functions import EvaluationFunction
    from overlap_train.options.pools import configure
    from overlap_train.options.validation import EvaluatorPolicy, ValidationPolicy, ValidationSet

__all__ = [
    "CheckpointPolicy",
    "EpochOnly",
    "EvaluationFunction",
    "EvaluatorPolicy",
    "ExecutionPlan",
    "ValidationPolicy",
    "ValidationSet",
    "configure",
]

_HOMES = {
    "CheckpointPolicy": "checkpoint",
    "EpochOnly": "epoch_only",
    "EvaluationFunction": "functions",
    "EvaluatorPolicy": "validation",
    "ExecutionPlan": "execution",
    "ValidationPolicy": "validation",
    "ValidationSet": "validation",
    "configure": "pools",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
