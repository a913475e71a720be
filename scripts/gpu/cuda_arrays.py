"""Arrays for the CUDA kernels, and what a convolution of them should give, in double precision.

`TorchArrays` are PyTorch's on a GPU. `NumpyArrays` are NumPy's, for the emulator. Neither needs TensorFlow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.gpu.cuda_library import Shape

__all__ = ["NumpyArrays", "TorchArrays"]


class TorchArrays:
    """PyTorch's arrays on the GPU; its convolution, in double precision, is the oracle."""

    def __init__(self) -> None:
        import torch

        self.torch: Any = torch
        torch.manual_seed(0)

    def normal(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device="cuda")

    def filled(self, *shape: int) -> Any:
        return self.torch.full(shape, float("nan"), device="cuda")

    def expected(self, shape: Shape, x: Any, filters: Any, dy: Any) -> tuple[Any, Any, Any]:
        """Return y, dx and dfilters in double precision."""
        top, bottom, left, right = shape.padding
        x = x.double().permute(0, 3, 1, 2).requires_grad_()
        filters = filters.double().permute(3, 2, 0, 1).requires_grad_()
        functional = self.torch.nn.functional
        padded = functional.pad(x, (left, right, top, bottom))
        y = functional.conv2d(padded, filters, stride=(shape.stride_h, shape.stride_w))
        dx, dfilters = self.torch.autograd.grad(y, (x, filters), dy.double().permute(0, 3, 1, 2))
        return y.detach().permute(0, 2, 3, 1), dx.permute(0, 2, 3, 1), dfilters.permute(2, 3, 1, 0)

    def rounded(self, array: Any) -> Any:
        """Round to TF32, as cvt.rna does."""
        bits = (array.view(self.torch.int32) + 0x1000) & ~0x1FFF
        return bits.view(self.torch.float32)

    def error(self, got: Any, want: Any) -> float:
        return float((got.double() - want).norm() / max(float(want.norm()), 1e-30))

    def host(self, array: Any) -> Any:
        return array.cpu().numpy()

    @staticmethod
    def address(array: Any) -> int:
        return int(array.data_ptr())


class NumpyArrays:
    """NumPy's arrays, for the emulator; the oracle is a product of matrices for each tap."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def normal(self, *shape: int) -> Any:
        return self._random.standard_normal(shape, np.float32)

    def filled(self, *shape: int) -> Any:
        return np.full(shape, np.nan, np.float32)

    def expected(self, shape: Shape, x: Any, filters: Any, dy: Any) -> tuple[Any, Any, Any]:
        """Return y, dx and dfilters in double precision."""
        x, filters, dy = (v.astype(np.float64) for v in (x, filters, dy))
        top, bottom, left, right = shape.padding
        padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
        y, dpadded, dfilters = np.zeros_like(dy), np.zeros_like(padded), np.zeros_like(filters)
        for r in range(shape.k_h):
            for q in range(shape.k_w):
                rows = slice(r, r + (shape.out_h - 1) * shape.stride_h + 1, shape.stride_h)
                columns = slice(q, q + (shape.out_w - 1) * shape.stride_w + 1, shape.stride_w)
                window = padded[:, rows, columns]
                y += window @ filters[r, q]
                dpadded[:, rows, columns] += dy @ filters[r, q].T
                dfilters[r, q] = np.tensordot(window, dy, ((0, 1, 2), (0, 1, 2)))
        dx = dpadded[:, top : top + shape.in_h, left : left + shape.in_w]
        return y, dx, dfilters

    def rounded(self, array: Any) -> Any:
        """Round to TF32, as cvt.rna does."""
        return ((array.view(np.int32) + 0x1000) & ~0x1FFF).view(np.float32)

    def error(self, got: Any, want: Any) -> float:
        return float(np.linalg.norm((got - want).ravel()) / max(float(np.linalg.norm(want.ravel())), 1e-30))

    def host(self, array: Any) -> Any:
        return array

    @staticmethod
    def address(array: Any) -> int:
        return int(array.ctypes.data)
