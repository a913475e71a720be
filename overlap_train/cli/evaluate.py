"""`overlap-train evaluate RUN train.py`: evaluates the weights that a training has kept, or writes.

The script runs up to its first `fit`, which does not train; its model, with whatever metrics it has by now,
and its validation data evaluate each epoch that the directory holds.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overlap_train._support.printing import error_text, is_number
from overlap_train.cli.report import Finding, Report, UsageError, one_line
from overlap_train.cli.script import FirstFit, add_script, first_fit

# What `evaluate_run` takes as `fit` does.
_AS_FIT = ("validation_data", "validation_steps", "validation_batch_size", "validation_freq")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: a directory and a script, and what follows is the script's."""
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="go on while the training gives a sign of life at least so often (default: 0)",
    )
    parser.add_argument(
        "directory",
        type=Path,
        help="that of the training's ValidationPolicy(evaluator=...) or CheckpointPolicy",
    )
    example = "overlap-train evaluate runs/7 train.py --rows 1000."
    add_script(parser, "a Python script that runs up to its first fit, which trains nothing", example)


def run(options: argparse.Namespace) -> Report:
    """Run the script up to its first `fit`, and evaluate the run with what that was given."""
    if not options.directory.is_dir():
        raise UsageError(f"there is no directory {options.directory}")

    def look(reached: FirstFit) -> tuple[Mapping[int, Mapping[str, Any]], list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            epochs = _evaluated(options.directory, reached, options.wait)
        return epochs, [one_line(warning.message) for warning in caught]

    epochs, messages = first_fit(options.script, options.rest, look)
    findings = [
        Finding(f"epoch {epoch + 1}", {name: _plain(value) for name, value in logs.items()}, _shown(logs))
        for epoch, logs in epochs.items()
    ]
    if not findings:
        text = f"{options.directory} holds no weights"
        remedy = "train with resume=CheckpointPolicy(directory, keep_weights='all')"
        findings = [Finding("epochs", 0, text, "note", remedy)]
    findings += [Finding("said", text, state="note") for text in messages]
    return Report("evaluate", {"epochs": findings}, str(options.directory))


def _evaluated(directory: Path, reached: FirstFit, wait_s: float) -> dict[int, dict[str, Any]]:
    """Return the logs of a run by epoch, or raise a UsageError with what is wrong."""
    from overlap_train.parallel import evaluate_run
    from overlap_train.trainer import Trainer

    trainer = reached.trainer
    arguments = inspect.signature(Trainer.fit).bind(trainer, *reached.args, **reached.kwargs).arguments
    if arguments.get("validation_data") is None and arguments.get("validation_split"):
        raise UsageError("the script's fit has a validation_split; give it the rows as validation_data")
    settings = trainer._settings()
    if not settings.stock_validation:
        raise UsageError(f"{type(trainer).__name__}.validation_step runs in the training's process only")
    try:
        return evaluate_run(
            directory,
            settings.model,
            **{name: arguments[name] for name in _AS_FIT if name in arguments},
            validation=dataclasses.replace(settings.validation, evaluator=None),
            preprocess=settings.preprocess,
            timeout_s=wait_s,
        )
    except Exception as error:
        raise UsageError(f"{directory} cannot be evaluated: {one_line(error_text(error))}") from error


def _shown(logs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in logs.items() if is_number(value)) or "-"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if is_number(value):
        return float(value) if math.isfinite(float(value)) else str(float(value))
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds from 0 on")
    return seconds
