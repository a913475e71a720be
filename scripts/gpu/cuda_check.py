"""Checks the CUDA kernels without TensorFlow.

    python -m scripts.gpu.cuda_check [--batch 8]       on a GPU: needs nvcc and PyTorch
    python -m scripts.gpu.cuda_check --emulate         on a CPU: needs g++; says nothing about speed

`scripts/gpu_evidence.sh` checks more shapes, and compares with cuDNN.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.gpu.cuda_arrays import NumpyArrays, TorchArrays
from scripts.gpu.cuda_library import (
    ALGORITHMS,
    DIRECTIONS,
    KernelError,
    Kernels,
    Shape,
    compile_kernels,
)

__all__ = ["BOUNDS", "check_shape", "main"]

# Largest relative error; of TF32 against operands that are rounded first. Tensor cores cut their sums off.
BOUNDS = {name: 2e-5 if name.endswith("tf32") else 5e-6 for name in ALGORITHMS}
_LAYERS = ((128, 192, 3, 64), (128, 192, 64, 64), (32, 48, 256, 256), (8, 12, 512, 1024), (23, 191, 17, 33))
_SMALL_LAYERS = ((12, 17, 3, 20), (5, 9, 17, 33), (5, 9, 16, 72))


def check_shape(kernels: Kernels, arrays: Any, shape: Shape) -> dict[str, float]:
    """Run every kernel that takes a shape, on outputs of NaN.

    Returns:
        For "algorithm, direction" the error relative to double precision; NaN if a number is.
    """
    x, filters, dy = arrays.normal(*shape.x), arrays.normal(*shape.filters), arrays.normal(*shape.y)
    at = arrays.address
    errors: dict[str, float] = {}
    for name in ALGORITHMS:
        operands = [arrays.rounded(v) if name.endswith("tf32") else v for v in (x, filters, dy)]
        want_y, want_dx, want_dfilters = arrays.expected(shape, *operands)
        y = arrays.filled(*shape.y)
        spaces = [arrays.filled(max(kernels.workspace(shape, way, name), 1)) for way in DIRECTIONS]
        kernels.forward(shape, at(x), at(filters), at(y), name, at(spaces[0]))
        errors[f"{name}, forward"] = arrays.error(y, want_y)
        if not name.startswith("implicit_gemm"):
            continue
        dx, dfilters = arrays.filled(*shape.x), arrays.filled(*shape.filters)
        kernels.input_gradient(shape, at(dy), at(filters), at(dx), name, at(spaces[1]))
        kernels.filter_gradient(shape, at(x), at(dy), at(dfilters), name, at(spaces[2]))
        errors[f"{name}, input gradient"] = arrays.error(dx, want_dx)
        errors[f"{name}, filter gradient"] = arrays.error(dfilters, want_dfilters)
    return errors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=None, help="images (8; emulated 1)")
    parser.add_argument("--emulate", action="store_true", help="run the kernels on the CPU")
    options = parser.parse_args(arguments)
    batch = options.batch or (1 if options.emulate else 8)
    try:
        arrays = NumpyArrays() if options.emulate else TorchArrays()
    except ImportError:
        print("PyTorch is not installed; the check needs it, or --emulate", file=sys.stderr)
        return 1
    wrong = 0
    try:
        with tempfile.TemporaryDirectory() as directory:
            kernels = Kernels(compile_kernels(Path(directory), emulate=options.emulate))
            for *image, outputs in _SMALL_LAYERS if options.emulate else _LAYERS:
                shape = Shape.of((batch, *image), outputs)
                for what, error in check_shape(kernels, arrays, shape).items():
                    right = error < BOUNDS[what.split(",")[0]]
                    wrong += not right
                    how = "emulated, " if options.emulate else ""
                    print(f"{how}{shape}: {what}: error {error:.1e}{'' if right else ', TOO LARGE'}")
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
