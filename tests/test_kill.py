"""Contract C8: a run killed at any moment goes on to the result of the unbroken one.

`scripts/kill_test.sh` kills at 50 random moments, in short epochs and inside long ones, and at some on each
kind of data that is no array.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests import forked, kill_target
from tests.differential import read_files
from tests.networks import assert_alike

LONG = kill_target.LongEpochs(steps=4000, every_steps=300)
KILLS = int(os.environ.get("OVERLAP_TRAIN_KILLS", "50"))
KILLS_IN_WRITES = int(os.environ.get("OVERLAP_TRAIN_WRITE_KILLS", "20"))
KILLS_ON_SOURCES = int(os.environ.get("OVERLAP_TRAIN_SOURCE_KILLS", "6"))
SEED = int(os.environ.get("OVERLAP_TRAIN_SEED", "0"))


class Run:
    """A training in a process of its own, which has begun."""

    def __init__(self, function, directory: Path, *arguments) -> None:
        self._said = directory.parent / f"{directory.name}.said"
        hearing, telling = multiprocessing.Pipe(duplex=False)
        self.process = forked.start(function, directory, telling, *arguments, said=self._said, limit_s=300)
        telling.close()
        with hearing, contextlib.suppress(EOFError):  # it was killed before
            assert hearing.recv() == "begun"

    def wait(self) -> int:
        """Waits for its end and returns the exit code: 0, or minus that of a kill."""
        self.process.join()
        code = self.process.exitcode
        assert code in (0, -signal.SIGKILL), self._said.read_text()[-4000:]
        return code


def run_to_the_end(directory: Path, *arguments) -> float:
    """Returns the seconds from the beginning of the training to the end of the process."""
    run = Run(kill_target.main, directory, *arguments)
    began_s = time.monotonic()
    assert run.wait() == 0
    return time.monotonic() - began_s


def kill_after(directory: Path, seconds: float, *arguments) -> bool:
    """Kills a run so long after its training began; returns whether it was still alive."""
    run = Run(kill_target.main, directory, *arguments)
    timer = threading.Timer(seconds, run.process.kill)
    timer.start()
    code = run.wait()
    timer.cancel()
    return code != 0


def kill_in_a_write(directory: Path, at: int) -> bool:
    """Kills a run at its n-th operation on files of checkpoints; returns whether it came so far."""
    return Run(kill_target.main_killed_at, directory, at).wait() != 0


def assert_same_result(actual: Path, expected: Path) -> None:
    histories, arrays, files = [], [], []
    for directory in (actual, expected):
        histories.append(json.loads((directory / "history.json").read_text()))
        with np.load(directory / "final.npz") as found:
            arrays.append(dict(found))
        files.append(read_files(directory))
    assert_alike(*histories, rtol=1e-6, atol=0.0)
    for pair in (arrays, files):
        assert_alike(*pair, rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Returns the directory of a run that nobody killed, and the seconds that it took."""
    directory = tmp_path_factory.mktemp("unbroken")
    return directory, run_to_the_end(directory)


def end_as_unbroken(tmp_path, unbroken, kills, kill, *arguments):
    """Kills runs, each several times in a row, until there were so many kills; compares their results."""
    rng = random.Random(SEED)
    done = run = 0
    while done < kills:
        run += 1
        directory = tmp_path / f"run{run}"
        directory.mkdir()
        # Several kills in a row, so that resumed runs are killed too.
        for _ in range(min(rng.randint(1, 4), kills - done)):
            if not kill(directory, rng):
                break
            done += 1
        if not (directory / "history.json").exists():
            run_to_the_end(directory, *arguments)
        assert_same_result(directory, unbroken)
    return f"{done} kills in {run} runs: all ended as the unbroken one"


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_killed_at_random_moments_the_result_is_that_of_the_unbroken_run(tmp_path, unbroken):
    directory, duration_s = unbroken
    longest_s = [duration_s]

    def kill(directory, rng):
        at_s, whole = rng.uniform(0, longest_s[0]), not (directory / "checkpoints").exists()
        killed = kill_after(directory, at_s)
        if whole and not killed:  # on a machine that was slower at first, most kills would come too late
            longest_s[0] = at_s
        return killed

    print(end_as_unbroken(tmp_path, directory, KILLS, kill))


def kill_inside_epochs(tmp_path, kills, of):
    unbroken = tmp_path / "unbroken"
    unbroken.mkdir()
    duration_s = run_to_the_end(unbroken, of)

    def kill(directory, rng):
        return kill_after(directory, rng.uniform(0, duration_s), of)

    return end_as_unbroken(tmp_path, unbroken, kills, kill, of)


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_killed_inside_long_epochs_the_result_is_that_of_the_unbroken_run(tmp_path):
    print("inside epochs:", kill_inside_epochs(tmp_path, KILLS, LONG))


@pytest.mark.kill
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("source", sorted(kill_target.sources()))
def test_killed_on_data_that_is_no_array_the_result_is_that_of_the_unbroken_run(tmp_path, source):
    """Generators, `PyDataset`s, and what Hugging Face and Grain make, where they are installed."""
    print(f"{source}:", kill_inside_epochs(tmp_path, KILLS_ON_SOURCES, kill_target.FromSource(source)))


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_killed_inside_a_write_of_a_checkpoint_the_result_is_that_of_the_unbroken_run(tmp_path, unbroken):
    def kill(directory, rng):
        return kill_in_a_write(directory, rng.randint(1, 150))

    print("inside writes:", end_as_unbroken(tmp_path, unbroken[0], KILLS_IN_WRITES, kill))
