"""The check of the CUDA kernels where there is no GPU, and on one where there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from scripts.gpu import cuda_library, kernel_stages
from scripts.gpu.cuda_library import Kernels, Shape
from scripts.gpu.stages import Context, Record, Unavailable, output_of

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return cuda_library.compile_kernels(tmp_path_factory.mktemp("kernels"), emulate=True)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "want"),
    [
        (7, 3, 2, (4, (1, 1))),
        (8, 3, 2, (4, (0, 1))),  # TensorFlow pads more behind
        (5, 3, 5, (1, (0, 0))),
    ],
)
def test_uneven_padding_goes_behind(size, kernel, stride, want) -> None:
    shape = Shape.of((1, size, size, 1), 1, kernel=kernel, stride=stride)
    assert (shape.out_h, shape.padding[:2]) == want


def test_machine_without_tensorflow_can_check() -> None:
    code = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from scripts.gpu import evidence
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def checked(directory: Path) -> list[dict]:
    """Returns the rows of the emulated check."""
    record = Record(directory, "check", fingerprint="", emulated=True)
    deadline_s = time.monotonic() + 200
    kernel_stages.check(Context(record, directory, emulate=True, quick=True, deadline_s=deadline_s))
    return record.rows


def test_the_check_says_what_a_failing_test_says(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(kernel_stages, "_compile_test", lambda context: None)
    failing = ["sh", "-c", "echo 1 of 9 results is wrong; exit 1"]
    monkeypatch.setattr(kernel_stages, "output_of", lambda _, context: output_of(failing, context))
    (row,) = checked(tmp_path)
    assert not row["clean"]
    assert row["last_words"] == ["1 of 9 results is wrong"]


@pytest.mark.nightly
@needs_compiler
@pytest.mark.parametrize("direction", cuda_library.DIRECTIONS)
def test_the_emulated_kernels_give_numbers_where_their_results_go(library, direction) -> None:
    ours = kernel_stages.Ours(Kernels(library), None, Shape.of((1, 6, 7, 3), 4))
    results = dict(zip(("input_gradient", "filter_gradient", "forward"), ours.tensors[-3:], strict=True))
    for run in ours.contestants(direction).values():
        results[direction].fill(np.nan)
        run()
        assert np.isfinite(results[direction]).all()


@pytest.mark.gpu
def test_kernels_on_a_gpu(tmp_path) -> None:
    if shutil.which("nvidia-smi") is None or shutil.which("nvcc") is None:
        pytest.skip("no GPU, or no nvcc")
    # In a process without TensorFlow: PyTorch has crashed in one that had loaded its CUDA libraries.
    done = subprocess.run(
        [sys.executable, "-m", "scripts.gpu.evidence", "--only", "build", "check", "--output", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_missing_compiler_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="nvcc is not on the path; install"):
        cuda_library.compile_kernels(tmp_path)
