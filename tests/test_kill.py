"""Contract C8: a run killed at any moment goes on to the result of the unbroken one.

`scripts/kill_test.sh` kills at 50 random moments; the default suite does without.
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

KILLS = int(os.environ.get("OVERLAP_TRAIN_KILLS", "50"))


def start(directory: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.kill_target", str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run_to_the_end(directory: Path) -> float:
    """Returns the seconds from the beginning of the training to the end of the process."""
    import time

    process = start(directory)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "begun"
    began_s = time.monotonic()
    assert process.wait(timeout=300) == 0
    process.stdout.close()
    return time.monotonic() - began_s


def kill_after(directory: Path, seconds: float) -> bool:
    """Kills a run so long after its training began; returns whether it was still alive."""
    process = start(directory)
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


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_killed_at_random_moments_the_result_is_that_of_the_unbroken_run(tmp_path):
    unbroken = tmp_path / "unbroken"
    unbroken.mkdir()
    duration_s = run_to_the_end(unbroken)
    rng = random.Random(int(os.environ.get("OVERLAP_TRAIN_SEED", "0")))
    kills = run = 0
    while kills < KILLS:
        run += 1
        directory = tmp_path / f"run{run}"
        directory.mkdir()
        # Several kills in a row, so that resumed runs are killed too.
        for _ in range(rng.randint(1, 4)):
            if not kill_after(directory, rng.uniform(0, duration_s)):
                break
            kills += 1
        if not (directory / "history.json").exists():
            run_to_the_end(directory)
        assert_same_result(directory, unbroken)
    print(f"{kills} kills in {run} runs of {duration_s:.1f} s: all ended as the unbroken one")
