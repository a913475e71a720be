"""The threads of a fit and of networks in service, in orders that seeds decide.

Callbacks see what they see under Keras. Nothing is lost, stuck or left behind, whatever fails and whenever
a signal comes: see `run.check`, and `serving`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.faults import read_faults
from tests.simulation.points import planted

ROOT = Path(__file__).parents[2]
NIGHTLY = int(os.environ.get("OVERLAP_TRAIN_SCHEDULES", "1000000"))
FAULTS = read_faults()


def simulate(*arguments) -> tuple[int, str]:
    """Returns the status of a run and what it has printed."""
    command = [sys.executable, "-m", "tests.simulation", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


BY_DAY = pytest.mark.timeout(1200)
BY_NIGHT = (pytest.mark.nightly, pytest.mark.timeout(6 * 3600))


@pytest.mark.parametrize(
    ("serving", "first", "count"),
    [
        pytest.param((), 0, 10_000, id="fits", marks=BY_DAY),
        pytest.param(("--serving",), 0, 500, id="networks in service", marks=BY_DAY),
        pytest.param((), 10_000, NIGHTLY, id="more fits", marks=BY_NIGHT),
        pytest.param(("--serving",), 500, NIGHTLY // 10, id="more in service", marks=BY_NIGHT),
    ],
)
def test_fits_are_as_under_keras_and_what_is_asked_of_a_service_ends_once(serving, first, count):
    processes = 2 if first == 0 else os.cpu_count()
    status, text = simulate(*serving, "--first", first, "--count", count, "--processes", processes)
    assert status == 0, text


def test_the_command_that_a_failure_prints_gives_the_same_schedule_in_another_process():
    status, text = simulate("--count", 1000, "--fault", "one-too-far")
    again = re.search(r"again: python -m tests.simulation (.+)", text)
    assert status == 1
    assert again is not None, text
    status, replayed = simulate(*again[1].split())
    assert status == 1
    did = [
        [line for line in printed.splitlines() if "digest" in line or "Error" in line]
        for printed in (text, replayed)
    ]
    assert did[0] == did[1]
    assert any("digest" in line for line in did[0])


@pytest.mark.nightly
@pytest.mark.timeout(4 * 3600)
def test_the_simulation_finds_its_faults():
    status, table = simulate("--count", 20_000, "--processes", os.cpu_count(), "--table")
    assert status == 0, table


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.found_by])
def test_a_test_finds_its_fault(name):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.simulation.planting"]
    tests = FAULTS[name].found_by.split()
    done = subprocess.run([*command, *tests], cwd=ROOT, env=os.environ | {"OVERLAP_TRAIN_FAULT": name})
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_place(name):
    for module, changes in FAULTS[name].changes.items():
        text = (ROOT / "overlap_train" / module.replace(".", "/")).with_suffix(".py").read_text()
        for change in changes:
            text = planted(text, *change)
        compile(text, module, "exec")


def test_there_are_fifty_faults():
    assert len(FAULTS) >= 50
