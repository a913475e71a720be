"""`overlap-train estimate script.py`: what the script's first `fit` would take of memory and time."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import time
from pathlib import Path

from overlap_train.cli.explain import explained
from overlap_train.cli.report import Finding, Report, size
from overlap_train.cli.script import FirstFit, first_fit
from overlap_train.records import Explanation

__all__ = ["add_arguments", "run"]

_STEPS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: a script, and what follows is the script's."""
    parser.add_argument("script", type=Path, help="a Python script that calls fit")
    parser.epilog = f"Other arguments are the script's. Of its first fit {_STEPS} steps are made, twice."


def run(options: argparse.Namespace) -> Report:
    """Run the script up to its first `fit`, explain that, and make a few of its steps."""

    def look(reached: FirstFit) -> dict[str, list[Finding]]:
        explanation = explained(options.script, reached)
        return {"memory": _memory(explanation), "time": _time(reached, explanation)}

    sections = first_fit(options.script, [a for a in options.rest if a != "--"], look)
    return Report("estimate", sections, str(options.script))


def _memory(explanation: Explanation) -> list[Finding]:
    held = explanation.max_lag + 1 if explanation.overlaps else 1
    one = explanation.snapshot_bytes
    return [
        Finding("snapshot_bytes", one, f"{size(one)} for one set of weights and optimizer"),
        Finding("snapshots_bytes", held * one, f"{size(held * one)} for at most {held} of them"),
        Finding(
            "data_bytes",
            explanation.data_bytes,
            f"{size(explanation.data_bytes)} of training data held as tensors",
        ),
    ]


def _time(reached: FirstFit, explanation: Explanation) -> list[Finding]:
    findings = [
        Finding("tracing_s", explanation.tracing_s, f"{explanation.tracing_s:.2f} s to trace and build")
    ]
    steps = min(_STEPS, explanation.steps_per_epoch or _STEPS)
    first_s, _ = _measured(reached, steps)
    step_s = _measured(reached, steps)[1] / steps
    findings.append(Finding("step_s", step_s, f"{step_s * 1e3:.2f} ms a step, measured over {steps}"))
    if explanation.steps_per_epoch is None:
        return [*findings, Finding("first_epoch_s", None, "unknown: only the data knows its steps", "note")]
    epoch_s = first_s + (explanation.steps_per_epoch - steps) * step_s
    text = f"about {epoch_s:.1f} s to train it, without the trials of a plan and the validation"
    return [*findings, Finding("first_epoch_s", epoch_s, text)]


def _measured(reached: FirstFit, steps: int) -> tuple[float, float]:
    """Return how many seconds a fit of a few steps takes, and the steps in it.

    The script ends here, so nothing misses the old weights.
    """
    bound = inspect.signature(type(reached.trainer).fit).bind(
        reached.trainer, *reached.given, **reached.kwargs
    )
    kept = ("x", "y", "batch_size", "shuffle", "class_weight", "sample_weight")
    given = {name: value for name, value in bound.arguments.items() if name in kept}
    trainer = reached.trainer
    trainer.validation = dataclasses.replace(trainer.validation, functions=None)  # nothing is validated
    start_s = time.monotonic()
    trainer.fit(**given, verbose=0, epochs=1, steps_per_epoch=steps)
    return time.monotonic() - start_s, trainer.accounts[0].trained_s
