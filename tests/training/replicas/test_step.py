"""Training on two logical CPUs, in processes of their own: the `cases_*.py` beside this file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import interpreters

HERE = Path(__file__).parent


def run_cases(name: str, *options: str) -> None:
    """Runs a file of cases with pytest in another process without a GPU, and fails with its output."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *options, HERE / name]
    interpreters.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        *("cases_numbers.py", "cases_whole_fit.py"),
        *("cases_refusals.py", "cases_differential.py", "cases_own_test_step.py"),
    ],
)
# Random runs are nightly: what they combine is in the other files.
@pytest.mark.by_default("cases_refusals.py")
def test_two_logical_cpus(name):
    run_cases(name, "-m", "not nightly")


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "name",
    [
        *("cases_numbers.py", "cases_whole_fit.py", "cases_differential.py"),
        "cases_own_test_step.py",
    ],
)
def test_two_logical_cpus_nightly(name):
    run_cases(name, "-m", "nightly")
