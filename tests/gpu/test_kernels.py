"""The check of the CUDA kernels where there is no GPU, and on one where there is."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scripts.gpu import cuda_library, kernel_stages
from scripts.gpu.cuda_arrays import NumpyArrays
from scripts.gpu.cuda_library import KernelError, Kernels, Shape
from scripts.gpu.record import Record
from scripts.gpu.stages import Context, Unavailable

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return cuda_library.compile_kernels(tmp_path_factory.mktemp("kernels"), emulate=True)


def test_shape_matches_the_c_structure() -> None:
    assert ctypes.sizeof(Shape) == 13 * 8
    assert [name for name, _ in Shape._fields_][:4] == ["batch", "in_h", "in_w", "in_c"]


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "same", "want"),
    [
        (7, 3, 2, True, (4, (1, 1))),
        (8, 3, 2, True, (4, (0, 1))),  # TensorFlow pads more behind
        (7, 3, 2, False, (3, (0, 0))),
        (2, 3, 1, False, (0, (0, 0))),
        (5, 3, 5, True, (1, (0, 0))),
    ],
)
def test_uneven_padding_goes_behind(size, kernel, stride, same, want) -> None:
    shape = Shape.of((1, size, size, 1), 1, kernel=kernel, stride=stride, same=same)
    assert (shape.out_h, shape.padding[:2]) == want


def test_oracle_agrees_with_tensorflow() -> None:
    import tensorflow as tf

    arrays, shape = NumpyArrays(), Shape.of((2, 8, 7, 3), 4, stride=2)
    x, filters, dy = arrays.normal(*shape.x), arrays.normal(*shape.filters), arrays.normal(*shape.y)
    y, dx, dfilters = arrays.expected(shape, x, filters, dy)
    with tf.GradientTape() as tape:
        at = tf.Variable(x), tf.Variable(filters)
        stock = tf.nn.conv2d(*at, 2, "SAME")
    by_x, by_filters = tape.gradient(stock, at, dy)
    for ours, theirs in ((y, stock), (dx, by_x), (dfilters, by_filters)):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-4)


def test_machine_without_tensorflow_can_check() -> None:
    code = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from scripts.gpu import evidence
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def checked(directory: Path, *, emulate: bool = True) -> list[dict]:
    """Returns the rows of the check."""
    record = Record(directory, "check", fingerprint="", emulated=emulate)
    kernel_stages.check(Context(record, directory, emulate=emulate, quick=True, deadline_s=float("inf")))
    return record.rows


@needs_compiler
def test_the_emulated_check_finds_nothing_wrong(tmp_path) -> None:
    rows = checked(tmp_path)
    assert len(rows) >= 6
    assert not [row for row in rows if row["wrong"]]
    assert {len(row["errors"]) for row in rows} == {2, 7}  # of an epilogue, and of a shape


@needs_compiler
def test_wrong_result_is_told(tmp_path, monkeypatch) -> None:
    right = NumpyArrays.expected

    def wrong(self, *arguments):
        y, dx, dfilters = right(self, *arguments)
        return y, dx * 1.001, dfilters

    monkeypatch.setattr(NumpyArrays, "expected", wrong)
    told = {what for row in checked(tmp_path) for what in row["wrong"]}
    assert told == {"implicit_gemm, input gradient", "implicit_gemm_tf32, input gradient"}


@needs_compiler
def test_refused_launch_names_the_function_and_the_error(library) -> None:
    kernels = Kernels(library)
    with pytest.raises(
        KernelError, match=r"overlap_conv_filter_gradient_cuda failed with cudaErrorInvalidValue \(1\)"
    ):
        kernels.filter_gradient(Shape.of((1, 9, 9, 4), 4), 0, 0, 0, "shared_memory", 0)


def test_missing_compiler_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelError, match="nvcc is not on the path; install"):
        cuda_library.compile_kernels(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_missing_oracle_is_named(tmp_path) -> None:
    with pytest.raises(Unavailable, match="PyTorch"):
        checked(tmp_path, emulate=False)


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
