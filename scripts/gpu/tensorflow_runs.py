"""Runs what needs TensorFlow on a GPU; see scripts/gpu_tensorflow.sh."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from scripts.gpu import epoch_profile, network_stages, training_stages
from scripts.gpu.driver import Evidence, Row, Section, table, wrong_rows
from scripts.gpu.stages import Stage

_TRAINING = ("scripts/gpu/training_stages.py", "overlap_train", "overlap_train/_training")
_NETWORKS = (
    *("scripts/gpu/network_stages.py", "overlap_train", "overlap_train/_training"),
    "overlap_train/_validation",
)
_PROFILE = ("scripts/gpu/epoch_profile.py", "overlap_train/_training")


def _policies(rows: list[Row]) -> str:
    names = ("policy", "duty", "achieved", "seconds")
    lines = [[row[name] for name in names] for row in rows if "policy" in row]
    return table(names, lines) + wrong_rows(rows)


def _tests(rows: list[Row]) -> str:
    failures = [f"- `{row['failure']}`" for row in rows if "failure" in row]
    ends = [line for row in rows for line in row.get("last_words", ())]
    return "\n".join(["```", *ends, "```", "", *failures]) + wrong_rows(rows)


EVIDENCE = Evidence(
    "scripts.gpu.tensorflow_runs",
    "scripts/gpu_tensorflow.sh",
    "TensorFlow",
    "tensorflow",
    (
        Stage("profile", epoch_profile.profile, 60, _PROFILE),
        Stage("policies", training_stages.policies, 300, (*_TRAINING, "overlap_train/scheduling")),
        Stage("tests", training_stages.tests, 240, _TRAINING),
        Stage("suite", training_stages.suite, 300, (*_TRAINING, "overlap_train/_validation")),
        Stage("networks", network_stages.networks, 540, _NETWORKS),
    ),
    (
        Section("networks", "Whole fits, by Keras and overlapped (P1)", network_stages.page_of_networks),
        Section("profile", "What the host does between steps", epoch_profile.page_of_profile),
        Section("policies", "The scheduler's policies on CPU and GPU (P4)", _policies),
        Section("tests", "The tests that need a GPU", _tests),
        Section("suite", "The default tests of the trainer, on the card with operations that repeat", _tests),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if it is done and right, 1 if something is wrong, 3 to go on."""
    parser = argparse.ArgumentParser(prog=EVIDENCE.script, description=__doc__)
    EVIDENCE.add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.emulate:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        return EVIDENCE.run(options)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
