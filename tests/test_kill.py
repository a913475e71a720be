"""Contract C8: a run killed at any moment goes on to the result of the unbroken one.

`scripts/kill_test.sh` kills at 50 random moments, in short epochs and inside long ones; the default suite at
three of the latter.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.differential import read_files

EVERY_STEPS = "300"
KILLS = int(os.environ.get("OVERLAP_TRAIN_KILLS", "50"))


def start(directory: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.kill_target", str(directory), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run_to_the_end(directory: Path, *arguments: str) -> float:
    """Returns the seconds from the beginning of the training to the end of the process."""
    import time

    process = start(directory, *arguments)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "begun"
    began_s = time.monotonic()
    assert process.wait(timeout=300) == 0
    process.stdout.close()
    return time.monotonic() - began_s


def kill_after(directory: Path, seconds: float, *arguments: str) -> bool:
    """Kills a run so long after its training began; returns whether it was still alive."""
    process = start(directory, *arguments)
    assert process.stdout is not None
    if process.stdout.readline().strip() != "begun":
        pytest.fail(f"the training ended before it began: exit code {process.wait()}")
    timer = threading.Timer(seconds, process.send_signal, [signal.SIGKILL])
    timer.start()
    code = process.wait(timeout=300)
    timer.cancel()
    process.stdout.close()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def assert_same_result(actual: Path, expected: Path) -> None:
    a, b = (json.loads((d / "history.json").read_text()) for d in (actual, expected))
    assert list(a) == list(b)
    for name in b:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-6, err_msg=name)
    with np.load(actual / "final.npz") as a, np.load(expected / "final.npz") as b:
        assert a.files == b.files
        for name in b.files:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-6, atol=1e-7)
    files_a, files_b = read_files(actual), read_files(expected)
    assert sorted(files_a) == sorted(files_b)
    for name, content in files_b.items():
        assert sorted(files_a[name]) == sorted(content)
        for key, value in content.items():
            np.testing.assert_allclose(
                files_a[name][key], value, rtol=1e-6, atol=1e-7, err_msg=f"{name} {key}"
            )


def kill_and_compare(directory: Path, most_kills: int, *arguments: str) -> None:
    """Kills runs at random moments and compares their results with that of an unbroken one."""
    unbroken = directory / "unbroken"
    unbroken.mkdir()
    duration_s = run_to_the_end(unbroken, *arguments)
    rng = random.Random(int(os.environ.get("OVERLAP_TRAIN_SEED", "0")))
    kills = run = 0
    while kills < most_kills:
        run += 1
        broken = directory / f"run{run}"
        broken.mkdir()
        # Several kills in a row, so that resumed runs are killed too.
        for _ in range(min(rng.randint(1, 4), most_kills - kills)):
            if not kill_after(broken, rng.uniform(0, duration_s), *arguments):
                break
            kills += 1
        if not (broken / "history.json").exists():
            run_to_the_end(broken, *arguments)
        assert_same_result(broken, unbroken)
    print(f"{kills} kills in {run} runs of {duration_s:.1f} s: all ended as the unbroken one")


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_killed_at_random_moments_the_result_is_that_of_the_unbroken_run(tmp_path):
    kill_and_compare(tmp_path, KILLS)


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_killed_inside_long_epochs_the_result_is_that_of_the_unbroken_run(tmp_path):
    kill_and_compare(tmp_path, KILLS, EVERY_STEPS)


@pytest.mark.timeout(600)
def test_killed_inside_long_epochs_three_times(tmp_path):
    kill_and_compare(tmp_path, 3, EVERY_STEPS)
