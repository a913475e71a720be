"""Runs what needs TensorFlow on a GPU machine; see scripts/gpu_tensorflow.sh."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from scripts.gpu import epoch_profile, evidence, network_stages, training_stages
from scripts.gpu.driver import Evidence, Row, table, wrong_rows
from scripts.gpu.network_stages import Fit
from scripts.gpu.stages import Stage

_TRAINING = ("scripts/gpu/training_stages.py", "overlap_train", "overlap_train/_training")
_NETWORKS = (
    *("scripts/gpu/network_stages.py", "overlap_train", "overlap_train/_training"),
    "overlap_train/_validation",
)
_PROFILE = ("scripts/gpu/epoch_profile.py", "overlap_train/_training")


def _policies(rows: list[Row]) -> str:
    names = ("policy", "duty", "seconds")
    lines = [[row[name] for name in names] for row in rows if "policy" in row]
    return table(names, lines) + wrong_rows(rows)


def _tests(rows: list[Row]) -> str:
    failures = [f"- `{row['failure']}`" for row in rows if "failure" in row]
    ends = [line for row in rows for line in row.get("last_words", ())]
    return "\n".join(["```", *ends, "```", "", *failures]) + wrong_rows(rows)


def _of_fits(name: str, fits: Iterable[Fit], title: str) -> Stage:
    body, text = getattr(network_stages, name), network_stages.page_of_networks
    return Stage(name, body, 540, _NETWORKS, sum(fit.expected_s for fit in fits), title, text, by_rows=True)


def _of_training(
    name: str, limit_s: float, source: str, expected_s: float, title: str, text: Callable[[list[Row]], str]
) -> Stage:
    body = getattr(training_stages, name)
    return Stage(name, body, limit_s, (*_TRAINING, source), expected_s, title, text)


_PROFILED = "What the host does between steps"
_POLICIES = "The scheduler's policies on CPU and GPU (P4)"
_SUITE = "The default tests of the trainer, on the card with operations that repeat"
EVIDENCE = Evidence(
    "scripts.gpu.tensorflow_runs",
    "scripts/gpu_tensorflow.sh run",
    "TensorFlow",
    "tensorflow",
    (
        Stage("profile", epoch_profile.profile, 60, _PROFILE, 45, _PROFILED, epoch_profile.page_of_profile),
        _of_training("policies", 300, "overlap_train/scheduling", 120, _POLICIES, _policies),
        _of_training("tests", 240, "overlap_train/_data", 60, "The tests that need a GPU", _tests),
        _of_training("suite", 300, "overlap_train/_validation", 210, _SUITE, _tests),
        _of_fits("networks", network_stages.fits(), "Whole fits, by Keras and overlapped (P1)"),
        _of_fits("jax", network_stages.fits_on_jax(), "The same by Keras on JAX"),
        _of_fits("further", network_stages.further_fits(), "Every network in every way"),
    ),
    (evidence.EVIDENCE,),
)

if __name__ == "__main__":
    sys.exit(EVIDENCE.main(__doc__))
