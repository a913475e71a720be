"""Checks and times the CUDA kernels without TensorFlow, wherever there is a GPU.

    python -m overlap_train.conv.cuda_check [--batch 8]

nvcc compiles the one .cu file; ctypes calls it on tensors of PyTorch or CuPy, whichever is installed, which
also give the expected results in double precision. Nothing of this has run on a GPU yet: the machine it was
written on has none, and there the kernels only compile, and run under the emulator of the C++ tests.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from overlap_train.conv.build import NATIVE_SOURCES

__all__ = ["ALGORITHMS", "Shape", "compile_kernels", "main"]

# enum CudaAlgorithm in conv_cuda.h.
ALGORITHMS = {"shared_memory": 0, "implicit_gemm": 1, "implicit_gemm_tf32": 2, "few_channels": 3}
_LAYERS = ((128, 192, 3, 64), (128, 192, 64, 64), (32, 48, 256, 256), (8, 12, 512, 1024), (23, 191, 17, 33))


class Shape(ctypes.Structure):
    """ConvShape of geometry.h."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "in_h", "in_w", "in_c", "out_h", "out_w", "out_c"),
            *("k_h", "k_w", "stride_h", "stride_w", "pad_top", "pad_left"),
        )
    ]


def compile_kernels(directory: Path, architecture: str = "native") -> ctypes.CDLL:
    """Compiles conv_cuda.cu into `directory` and loads it.

    Raises:
        RuntimeError: there is no nvcc, or it fails.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise RuntimeError("nvcc is not on the path; install the CUDA toolkit, 13 or newer")
    library = directory / "libconv_cuda.so"
    command = [nvcc, "-std=c++17", "-O3", "-shared", "-Xcompiler=-fPIC", f"-arch={architecture}"]
    result = subprocess.run(
        [*command, str(NATIVE_SOURCES / "conv_cuda.cu"), "-o", str(library)],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise RuntimeError(f"nvcc failed:\n{result.stderr}")
    kernels = ctypes.CDLL(str(library))
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    shape = ctypes.POINTER(Shape)
    kernels.overlap_conv_forward_cuda.argtypes = [
        *(shape, pointer, pointer, pointer, integer, pointer, integer, pointer)
    ]
    kernels.overlap_conv_input_gradient_cuda.argtypes = [shape, pointer, pointer, pointer, integer, pointer]
    kernels.overlap_conv_filter_gradient_cuda.argtypes = [
        *(shape, pointer, pointer, pointer, integer, pointer, pointer)
    ]
    kernels.overlap_conv_filter_gradient_workspace.argtypes = [shape]
    kernels.overlap_conv_filter_gradient_workspace.restype = ctypes.c_longlong
    return kernels


class _Torch:
    """What the check needs of PyTorch; its convolution, in double precision, is the oracle."""

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")

    def normal(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device="cuda")

    def filled(self, *shape: int) -> Any:
        return self.torch.full(shape, float("nan"), device="cuda")

    def expected(self, x: Any, filters: Any, dy: Any) -> tuple[Any, Any, Any]:
        x = x.double().permute(0, 3, 1, 2).requires_grad_()
        filters = filters.double().permute(3, 2, 0, 1).requires_grad_()
        y = self.torch.nn.functional.conv2d(x, filters, padding=1)
        dx, dfilters = self.torch.autograd.grad(y, (x, filters), dy.double().permute(0, 3, 1, 2))
        return y.detach().permute(0, 2, 3, 1), dx.permute(0, 2, 3, 1), dfilters.permute(2, 3, 1, 0)

    def error(self, got: Any, want: Any) -> float:
        return float((got.double() - want).norm() / want.norm())

    def milliseconds(self, run: Callable[[], Any], repeats: int = 20) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / repeats

    @staticmethod
    def address(tensor: Any) -> int:
        return int(tensor.data_ptr())


class _CuPy:
    """The same of CuPy, whose oracle is nine products of matrices in double precision."""

    def __init__(self) -> None:
        self.cupy: Any = importlib.import_module("cupy")

    def normal(self, *shape: int) -> Any:
        return self.cupy.random.standard_normal(shape, dtype=self.cupy.float32)

    def filled(self, *shape: int) -> Any:
        return self.cupy.full(shape, self.cupy.nan, self.cupy.float32)

    def expected(self, x: Any, filters: Any, dy: Any) -> tuple[Any, Any, Any]:
        xp = self.cupy
        x, filters, dy = (v.astype(xp.float64) for v in (x, filters, dy))
        height, width = x.shape[1:3]
        padded = xp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        y, dpadded, dfilters = xp.zeros_like(dy), xp.zeros_like(padded), xp.zeros_like(filters)
        for r in range(3):
            for s in range(3):
                window = (slice(None), slice(r, r + height), slice(s, s + width))
                y += padded[window] @ filters[r, s]
                dpadded[window] += dy @ filters[r, s].T
                dfilters[r, s] = xp.tensordot(padded[window], dy, 3)
        return y, dpadded[:, 1:-1, 1:-1], dfilters

    def error(self, got: Any, want: Any) -> float:
        return float(self.cupy.linalg.norm((got - want).ravel()) / self.cupy.linalg.norm(want.ravel()))

    def milliseconds(self, run: Callable[[], Any], repeats: int = 20) -> float:
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        run()
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, end)) / repeats

    @staticmethod
    def address(tensor: Any) -> int:
        return int(tensor.data.ptr)


def _array_library() -> Any:
    for candidate in (_Torch, _CuPy):
        try:
            return candidate()
        except ImportError:
            continue
    raise RuntimeError("neither PyTorch nor CuPy is installed; the check needs one of them")


def _check_layer(kernels: ctypes.CDLL, arrays: Any, layer: Sequence[int], batch: int) -> bool:
    """Checks and times one 3×3 layer by every algorithm; returns whether all errors are small."""
    height, width, inputs, outputs = layer
    shape = Shape(batch, height, width, inputs, height, width, outputs, 3, 3, 1, 1, 1, 1)
    x, filters = arrays.normal(batch, height, width, inputs), arrays.normal(3, 3, inputs, outputs)
    dy = arrays.normal(batch, height, width, outputs)
    y, dx, dfilters = arrays.expected(x, filters, dy)
    slices = arrays.filled(int(kernels.overlap_conv_filter_gradient_workspace(shape)))
    at_x, at_filters, at_dy, at_slices = (arrays.address(v) for v in (x, filters, dy, slices))
    fine = True

    def check(algorithm: str, what: str, want: Any, function: Any, before: Any, *after: Any) -> None:
        nonlocal fine
        out = arrays.filled(*want.shape)
        call = functools.partial(function, shape, *before, arrays.address(out), *after)
        status = call()
        error, ms = arrays.error(out, want), arrays.milliseconds(call)
        print(f"{batch}×{layer} {algorithm}, {what}: {ms:.3f} ms, error {error:.1e}, status {status}")
        fine &= status == 0 and error < (2e-3 if algorithm.endswith("tf32") else 5e-6)

    for name, number in ALGORITHMS.items():
        if name != "few_channels" or inputs <= 4:
            sources = (at_x, at_filters, None, 0)
            check(name, "forward", y, kernels.overlap_conv_forward_cuda, sources, number, None)
        if not name.startswith("implicit_gemm"):
            continue
        back = kernels.overlap_conv_input_gradient_cuda
        check(name, "input gradient", dx, back, (at_dy, at_filters), number, None)
        gather = kernels.overlap_conv_filter_gradient_cuda
        check(name, "filter gradient by atomics", dfilters, gather, (at_x, at_dy), number, None, None)
        check(name, "filter gradient in order", dfilters, gather, (at_x, at_dy), number, at_slices, None)
    return fine


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args(arguments)
    try:
        arrays = _array_library()
        with tempfile.TemporaryDirectory() as directory:
            kernels = compile_kernels(Path(directory))
            results = [_check_layer(kernels, arrays, layer, options.batch) for layer in _LAYERS]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
