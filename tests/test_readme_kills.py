"""README's program, which sets no seed, is killed and resumed from one checkpoint to one result.

Its first block is run as it stands, on few digits, in processes that know nothing of each other. The first is
killed as it has written its third checkpoint; the others go on from copies of what it has left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests import forked
from tests.docs.pages import ROOT, blocks


def train(directory: Path, last: int | None) -> None:
    """Runs the program in a directory; leaves there what comes of it.

    Args:
        directory: where it writes.
        last: the number of checkpoints behind which the process is killed; None lets it live.
    """
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 10, n) for n in (1000, 200)]
    digits = [(rng.integers(0, 128, (len(y), 28, 28)) + 12 * y[:, None, None], y) for y in labels]
    keras.datasets.mnist.load_data = lambda: [(x.astype("uint8"), y) for x, y in digits]
    replace, written = os.replace, []

    def counting(source, target):
        replace(source, target)
        written.append(str(target))
        if sum(name.endswith(".otck") for name in written) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = counting
    os.chdir(directory)
    names = {"__name__": "__main__"}
    exec(compile(blocks(ROOT / "README.md", "python")[0].code, "README.md", "exec"), names)
    model, history = names["model"], names["history"]
    Path("weights").write_bytes(b"".join(weight.tobytes() for weight in model.get_weights()))
    Path("history.json").write_text(json.dumps({"epoch": history.epoch, **history.history}))


def results_of(resumes: int, directory: Path) -> set[bytes]:
    """Kills a run, resumes it so many times, several at once, and returns the results that differ."""
    first = directory / "first"
    first.mkdir()
    process = forked.start(train, first, 3, said=directory / "first.said", limit_s=300)
    process.join()
    assert process.exitcode == -signal.SIGKILL, (directory / "first.said").read_text()[-4000:]
    copies = [directory / str(number) for number in range(resumes)]
    found = set()
    for pair in (copies[n : n + 2] for n in range(0, resumes, 2)):
        running = []
        for copy in pair:
            shutil.copytree(first, copy)
            running.append(forked.start(train, copy, None, said=copy / "said", limit_s=300))
        for process, copy in zip(running, pair, strict=True):
            process.join()
            assert process.exitcode == 0, (copy / "said").read_text()[-4000:]
            epochs = json.loads((copy / "history.json").read_text())
            # It went on behind the second or third epoch, to the last or to the one that stopped it early.
            assert epochs["epoch"] == list(range(max(3, len(epochs["epoch"]))))
            found.add((copy / "history.json").read_bytes() + (copy / "weights").read_bytes())
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("resumes", [2, pytest.param(10, marks=pytest.mark.nightly)])
def test_resumed_from_one_checkpoint_the_result_is_one(resumes, tmp_path):
    assert len(results_of(resumes, tmp_path)) == 1
