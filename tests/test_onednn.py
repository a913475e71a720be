"""Comparisons of each kind of network on oneDNN's kernels, which the other default tests do without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CASES = [
    "tests/test_parity.py::test_mnist_with_any_number_of_workers_equals_keras[mnist_sequential-2]",
    "tests/test_parity.py::test_mixed_precision",
    "tests/conv/test_operation.py::test_empty_batch_gives_empty_output_and_zero_gradient",
    "tests/training/kernels/test_choice.py::test_training_on_fast_kernels_is_that_of_keras[in_memory]",
    "tests/training/test_splitting.py::test_last_batch_smaller_than_the_parts_equals_keras",
]
# TensorFlow reads the variable once, when it is imported: a fork of a process that has it would be too late.
PROGRAM = """
import sys
import pytest
from tensorflow.python.util import _pywrap_util_port
assert _pywrap_util_port.IsMklEnabled()
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not nightly", *sys.argv[1:]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="TensorFlow has oneDNN by default on Linux")
def test_comparisons_hold_on_the_kernels_of_onednn():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *CASES],
        cwd=ROOT,
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
