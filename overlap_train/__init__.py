"""Keras training with validation overlapped: the same numbers, sooner.

The names are loaded when they are first used: importing the package does not start TensorFlow, whose threads
must be set before it starts (`configure`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from overlap_train import errors
from overlap_train._moved import find_moved_modules
from overlap_train._version import __version__

if TYPE_CHECKING:
    from overlap_train.configuration import configure
    from overlap_train.conv import accelerate
    from overlap_train.records import EpochAccount, StepValidation
    from overlap_train.resume import CheckpointPolicy
    from overlap_train.routing import install, routed, uninstall
    from overlap_train.trainer import Trainer
    from overlap_train.training.plan import ExecutionPlan
    from overlap_train.validation.evaluation_function import EvaluationFunction
    from overlap_train.validation.policy import ValidationPolicy, ValidationSet

__all__ = [
    "CheckpointPolicy",
    "EpochAccount",
    "EvaluationFunction",
    "ExecutionPlan",
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
    "CheckpointPolicy": "resume",
    "EpochAccount": "records",
    "EvaluationFunction": "validation.evaluation_function",
    "ExecutionPlan": "training.plan",
    "StepValidation": "records",
    "Trainer": "trainer",
    "ValidationPolicy": "validation.policy",
    "ValidationSet": "validation.policy",
    "accelerate": "conv",
    "configure": "configuration",
    "install": "routing",
    "routed": "routing",
    "uninstall": "routing",
}

find_moved_modules()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
