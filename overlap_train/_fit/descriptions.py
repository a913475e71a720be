"""What decides the values of a validation, in words, for checkpoints and for other hosts."""

from __future__ import annotations

from typing import Any

from overlap_train._checkpoint.fingerprints import describe_sets
from overlap_train._fit.request import FitRequest
from overlap_train._training.settings import TrainerSettings


def function_name(function: Any) -> str:
    """Returns how a message calls a function."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def describe_validation(request: FitRequest) -> dict[str, str]:
    """Describes what a history's `val_` values come from."""
    settings = request.settings
    step = describe_step(settings)["validation_step"]
    preprocess = {"validation_step.preprocess": "a function"} if settings.preprocess is not None else {}
    functions = {
        f"evaluation function {name!r}": f"{function_name(each.function)}, freq {each.freq}"
        for name, each in request.functions.items()
    }
    return {**describe_sets(request.sets), "validation_step": step, **preprocess, **functions}


def describe_step(settings: TrainerSettings) -> dict[str, str]:
    """Describes what an evaluator has to do with each batch, as the training would."""
    step = "stock" if settings.stock_validation else function_name(settings.validation_step)
    return {"validation_step": step, "preprocess": "None" if settings.preprocess is None else "a function"}
