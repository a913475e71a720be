"""The CUDA check where there is no GPU, and on one where there is."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil

import pytest

from overlap_train.conv import cuda_check


def test_shape_matches_the_c_structure() -> None:
    assert ctypes.sizeof(cuda_check.Shape) == 13 * 8
    assert [name for name, _ in cuda_check.Shape._fields_][:4] == ["batch", "in_h", "in_w", "in_c"]


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is not None or importlib.util.find_spec("cupy") is not None,
    reason="PyTorch or CuPy is installed",
)
def test_missing_oracle_is_named(capsys) -> None:
    assert cuda_check.main([]) == 1
    assert "PyTorch" in capsys.readouterr().err


@pytest.mark.gpu
def test_kernels_on_a_gpu() -> None:
    if shutil.which("nvidia-smi") is None or shutil.which("nvcc") is None:
        pytest.skip("no GPU, or no nvcc")
    assert cuda_check.main([]) == 0
