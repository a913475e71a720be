"""Training on two logical CPUs, in processes of their own: the `cases_*.py` beside this file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run_cases(name: str, *options: str) -> None:
    """Runs a file of cases with pytest in another process, and fails with its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(HERE / name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", ["cases_numbers.py", "cases_whole_fit.py", "cases_refusals.py", "cases_differential.py"]
)
def test_two_logical_cpus(name):
    run_cases(name, "-m", "not nightly")


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ["cases_numbers.py", "cases_whole_fit.py", "cases_differential.py"])
def test_two_logical_cpus_nightly(name):
    run_cases(name, "-m", "nightly")
