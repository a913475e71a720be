"""Fits where descriptors, threads, disk or the right to write are scarce, in forks, and where something runs
around them: as ever, or refused by a message, and never a wait."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import forked, limits_target

# Few processes of several cases each: most of the time of one goes into its first fit.
CASES = [
    limits_target.few_descriptors,
    limits_target.threads_and_surroundings,
    limits_target.file_systems,
    limits_target.forks,
    pytest.param(limits_target.under_pytest_without_a_cache, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_fit_is_as_ever_or_refused(case, tmp_path):
    said = forked.run(case, tmp_path, said=tmp_path.parent / f"{tmp_path.name}.said")
    print(said)
    if limits_target.NO_RIGHT in said:
        pytest.skip(f"{limits_target.NO_RIGHT} (CAP_SYS_ADMIN)")


AT_EXIT = """
import atexit
import keras
import numpy as np
from overlap_train import Trainer

model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
model.compile("sgd", "mse")
data = np.zeros((16, 12)), np.zeros((16, 4))


@atexit.register
def late():
    history = Trainer(model).fit(*data, epochs=2, verbose=0, validation_data=data)
    print(len(history.history["val_loss"]), "validated")
"""


def test_the_first_fit_of_a_program_may_come_as_it_exits():
    # An interpreter of its own, which has imported nothing that this needs.
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=120)
    assert "2 validated" in done.stdout, done.stderr
