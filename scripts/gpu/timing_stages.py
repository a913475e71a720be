"""How fast the kernels are, next to cuDNN over whole networks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from scripts.gpu.clocks import Clock, Samples, interleave, median_ratio
from scripts.gpu.cuda_library import DIRECTIONS, Kernels, Shape
from scripts.gpu.kernel_stages import arrays_of, kernels_of
from scripts.gpu.shapes import LAYERS, layer_shape, shrunk
from scripts.gpu.stages import Context

__all__ = ["AGAINST", "BARS", "PRECISION", "geometric_means", "timing"]

# Times as fast as cuDNN, in geometric mean over U-Net's layers.
BARS = {"ours_fp32": 0.9, "ours_tf32": 0.7}
AGAINST = {"ours_fp32": "cudnn_fp32", "ours_tf32": "cudnn_tf32"}
_ALGORITHMS = {"ours_fp32": "implicit_gemm", "ours_tf32": "implicit_gemm_tf32"}
_BATCH = 8
PRECISION = "precision of cuDNN"
_FP32_BOUND = 1e-5
_LAYER_S = 0.5

Contestants = dict[str, Callable[[], object]]


def timing(context: Context) -> dict[str, Any]:
    """Time ours and cuDNN on each layer of U-Net, VGG16 and ResNet50: a row for each layer and direction."""
    arrays, kernels = arrays_of(context), kernels_of(context)
    clock = Clock(getattr(arrays, "torch", None))
    networks = {
        name: LAYERS[name][: 2 if context.emulate else None] for name in ("unet", "vgg16", "resnet50")
    }
    items = [
        (name, i, way) for name, layers in networks.items() for i in range(len(layers)) for way in DIRECTIONS
    ]
    for network, index, direction in context.todo(items, lambda item: " ".join(map(str, item))):
        layer = networks[network][index]
        shape = layer_shape(shrunk(layer), 1) if context.emulate else layer_shape(layer, _BATCH)
        contestants = Ours(kernels, arrays, shape).contestants(direction)
        contestants |= theirs(arrays, shape, direction)
        rounds = 3 if context.emulate else 21
        samples = interleave(clock, contestants, rounds=rounds, budget_s=_LAYER_S)
        row = {"network": network, "layer": str(shape), "count": layer.count, "direction": direction}
        key = f"{network} {index} {direction}"
        context.record.add(key, row | {"gflop": _gflop(shape)} | _figures(samples))
    if clock.is_cuda and not context.record.has(PRECISION):
        context.record.add(PRECISION, _precision_of_cudnn(arrays, layer_shape(LAYERS["unet"][1], 1)))
    return {"geometric_means": geometric_means(context.record.rows)}


def _gflop(shape: Shape) -> float:
    return float(2e-9 * math.prod(shape.y) * shape.k_h * shape.k_w * shape.in_c)


def _figures(samples: Samples) -> dict[str, Any]:
    ratios = {name: median_ratio(samples, AGAINST[name], name) for name in AGAINST if name in samples}
    quartiles = {name: statistics.quantiles(times, n=4) for name, times in samples.items()}
    return {"milliseconds_quartiles": quartiles, "ratios": ratios}


def geometric_means(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return by network, direction and contestant how many times as fast as cuDNN, in geometric mean."""
    rows = [row for row in rows if "network" in row]
    means: dict[str, dict[str, dict[str, float]]] = {}
    for network in dict.fromkeys(row["network"] for row in rows):
        for direction in DIRECTIONS:
            found: dict[str, list[float]] = {}
            for row in rows:
                if (row["network"], row["direction"]) == (network, direction):
                    for name, ratio in row["ratios"].items():
                        found.setdefault(name, []).append(ratio)
            means.setdefault(network, {})[direction] = {
                name: statistics.geometric_mean(ratios) for name, ratios in found.items()
            }
    return means


class Ours:
    """Our kernels on one shape, with tensors that live as long as this."""

    def __init__(self, kernels: Kernels, arrays: Any, shape: Shape) -> None:
        self._kernels, self._shape = kernels, shape
        self._tensors = [arrays.normal(*size) for size in (shape.x, shape.filters, shape.y)]
        # One workspace for all: what is queued on one stream uses it in turn.
        needed = (kernels.workspace(shape, way, name) for way in DIRECTIONS for name in _ALGORITHMS.values())
        self._tensors.append(arrays.filled(max(1, *needed)))
        self._tensors += [arrays.filled(*size) for size in (shape.x, shape.filters, shape.y)]
        self._at = [arrays.address(tensor) for tensor in self._tensors]

    def contestants(self, direction: str) -> Contestants:
        """Return what to run for a direction, by name."""
        run = getattr(self, f"_{direction}")
        return {name: run(algorithm) for name, algorithm in _ALGORITHMS.items()}

    def _forward(self, algorithm: str) -> Callable[[], object]:
        x, filters, _, workspace, _, _, y = self._at
        return lambda: self._kernels.forward(self._shape, x, filters, y, algorithm, workspace)

    def _input_gradient(self, algorithm: str) -> Callable[[], object]:
        _, filters, dy, workspace, dx, _, _ = self._at
        return lambda: self._kernels.input_gradient(self._shape, dy, filters, dx, algorithm, workspace)

    def _filter_gradient(self, algorithm: str) -> Callable[[], object]:
        x, _, dy, workspace, _, dfilters, _ = self._at
        return lambda: self._kernels.filter_gradient(self._shape, x, dy, dfilters, algorithm, workspace)


def theirs(arrays: Any, shape: Shape, direction: str) -> Contestants:
    """Return cuDNN by PyTorch in both precisions; emulated, NumPy's products under the same names."""
    torch = getattr(arrays, "torch", None)
    if torch is not None:
        return {f"cudnn_{mode}": _cudnn(torch, arrays, shape, direction, mode) for mode in ("fp32", "tf32")}
    operands = [arrays.normal(*size) for size in (shape.x, shape.filters, shape.y)]
    return dict.fromkeys(("cudnn_fp32", "cudnn_tf32"), lambda: arrays.expected(shape, *operands))


def _cudnn(torch: Any, arrays: Any, shape: Shape, direction: str, mode: str) -> Callable[[], object]:
    """Return one direction by cuDNN: channels last, its own search for the best algorithm.

    What is padded unevenly is padded beforehand, in its favour.
    """
    top, bottom, left, right = shape.padding
    even = (top, left) == (bottom, right)
    padding = (top, left) if even else (0, 0)
    x = arrays.normal(*shape.x).permute(0, 3, 1, 2)
    if not even:
        x = torch.nn.functional.pad(x, (left, right, top, bottom))
    x = x.contiguous(memory_format=torch.channels_last)
    filters = arrays.normal(shape.out_c, shape.in_c, shape.k_h, shape.k_w)
    filters = filters.contiguous(memory_format=torch.channels_last)
    dy = arrays.normal(*shape.y).permute(0, 3, 1, 2)
    stride = (shape.stride_h, shape.stride_w)
    wanted = [direction == "input_gradient", direction == "filter_gradient", False]

    def run() -> object:
        _precision(torch, mode)
        if direction == "forward":
            return torch.nn.functional.conv2d(x, filters, stride=stride, padding=padding)
        return torch.ops.aten.convolution_backward(
            dy, x, filters, None, stride, padding, (1, 1), False, (0, 0), 1, wanted
        )

    return run


def _precision_of_cudnn(arrays: Any, shape: Shape) -> dict[str, Any]:
    """Return cuDNN's errors in both modes: whether what is called fp32 is."""
    x, filters = arrays.normal(*shape.x), arrays.normal(*shape.filters)
    want, _, _ = arrays.expected(shape, x, filters, arrays.normal(*shape.y))
    nchw, oihw = x.permute(0, 3, 1, 2), filters.permute(3, 2, 0, 1)
    errors = {}
    for mode in ("fp32", "tf32"):
        _precision(arrays.torch, mode)
        y = arrays.torch.nn.functional.conv2d(nchw, oihw, padding=(shape.pad_top, shape.pad_left))
        errors[mode] = arrays.error(y.permute(0, 2, 3, 1), want)
    wrong = [] if errors["fp32"] < _FP32_BOUND else ["what PyTorch was told to compute in fp32 is not"]
    return {"errors": errors, "wrong": wrong}


def _precision(torch: Any, mode: str) -> None:
    """Set what cuDNN may round; by the newer of PyTorch's two switches, which must not be mixed."""
    cudnn = torch.backends.cudnn
    cudnn.benchmark = True
    conv = getattr(cudnn, "conv", None)
    if conv is not None and hasattr(conv, "fp32_precision"):
        conv.fp32_precision = "tf32" if mode == "tf32" else "ieee"
    else:
        cudnn.allow_tf32 = mode == "tf32"
