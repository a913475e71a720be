"""`overlap-train explain script.py`: whether the script's first `fit` would overlap, how, and why not.

The script runs up to that call, which is looked at and does not train.
"""

from __future__ import annotations

import argparse

from overlap_train._support.printing import error_text
from overlap_train.cli.report import Finding, Report, State, UsageError, one_line
from overlap_train.cli.script import FirstFit, add_script, first_fit
from overlap_train.records import Explanation

_TRAINER = (
    "write Trainer(model).fit(...) for model.fit(...), or wrap the call: with overlap_train.routed(): ..."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: a script, and what follows is the script's."""
    example = "overlap-train explain train.py --rows 1000."
    add_script(parser, "a Python script that runs up to its first fit, which trains nothing", example)


def run(options: argparse.Namespace) -> Report:
    """Run the script up to its first `fit`, and explain that."""

    def look(reached: FirstFit) -> tuple[bool, Explanation]:
        try:
            return reached.by_keras, reached.trainer.explain(*reached.args, **reached.kwargs)
        except Exception as error:
            text = one_line(error_text(error))
            raise UsageError(f"the fit of {options.script} would raise {text}") from error

    by_keras, explanation = first_fit(options.script, options.rest, look)
    state: State = "ok" if explanation.overlaps else "note"
    first = "in step" if explanation.reasons else str(explanation).splitlines()[0]
    findings = [Finding("overlap", explanation.overlaps, first, state)]
    findings += [
        Finding(r.identifier, r.sentence, r.sentence, "note", "\n".join(r.remedies))
        for r in explanation.reasons
    ]
    if by_keras:
        findings.insert(0, Finding("called", "keras.Model.fit", "", "note", _TRAINER))
    plan = explanation.plan
    findings.append(Finding("plan", plan, plan))
    repeats = (f"plan: {plan}", *(f"validating in step with the training: {r}" for r in explanation.reasons))
    findings += [Finding("said", text, "", "note") for text in explanation.messages if text not in repeats]
    return Report("explain", {"fit": findings}, str(options.script))
