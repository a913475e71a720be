"""Keras training with the validation overlapped: the same numbers, in less time.

Names are loaded on first use, so importing the package does not start TensorFlow. Its thread pools have to be
sized before it starts (`configure`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train import errors
from overlap_train._support.imports import lazy_names
from overlap_train._support.version import __version__

if TYPE_CHECKING:
    from overlap_train.conv import accelerate
    from overlap_train.options import (
        CheckpointPolicy,
        EpochOnly,
        EvaluationFunction,
        EvaluatorPolicy,
        ExecutionPlan,
        ValidationPolicy,
        ValidationSet,
        configure,
    )
    from overlap_train.records import EpochAccount, Explanation, StepValidation
    from overlap_train.routing import install, routed, uninstall
    from overlap_train.trainer import Trainer

__all__ = [
    "CheckpointPolicy",
    "EpochAccount",
    "EpochOnly",
    "EvaluationFunction",
    "EvaluatorPolicy",
    "ExecutionPlan",
    "Explanation",
    "StepValidation",
    "Trainer",
    "ValidationPolicy",
    "ValidationSet",
    "__version__",
    "accelerate",
    "configure",
    "errors",
    "install",
    "routed",
    "uninstall",
]

_HOMES = {
    "CheckpointPolicy": "options.checkpoint",
    "EpochAccount": "records",
    "EpochOnly": "options.epoch_only",
    "EvaluationFunction": "options.functions",
    "EvaluatorPolicy": "options.validation",
    "ExecutionPlan": "options.execution",
    "Explanation": "records",
    "StepValidation": "records",
    "Trainer": "trainer",
    "ValidationPolicy": "options.validation",
    "ValidationSet": "options.validation",
    "accelerate": "conv",
    "configure": "options.pools",
    "install": "routing",
    "routed": "routing",
    "uninstall": "routing",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
