"""The share of a validation that is hidden, from a command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("workload", ["mlp", pytest.param("input-bound", marks=pytest.mark.nightly)])
def test_the_command_prints_each_epoch_and_the_share(workload):
    options = [f"--workload={workload}", "--quick", "--epochs=3", "--workers=2"]
    command = [sys.executable, "-m", "overlap_train.benchmark.hidden", *options]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4].startswith("hidden of the 2 validations that an epoch follows: median ")
