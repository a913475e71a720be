"""Whether the kernels are right and how fast they are, next to cuDNN by PyTorch over whole networks.

They are right if their C++ test says so, also under compute-sanitizer. Time is that of CUDA's events around
CUDA graphs, so that nobody's launches count. cuDNN's times differ from process to process, as it searches
anew: the stage runs three times, and the page has the medians. Emulated, the CPU's clock and NumPy stand in.
"""

from __future__ import annotations

import functools
import math
import random
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.conv_shapes import LAYERS, Layer
from scripts.gpu.cuda_library import DIRECTIONS, NATIVE_SOURCES, KernelError, Kernels, Shape, compile_kernels
from scripts.gpu.stages import Context, Unavailable, output_of

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_TEST = "cuda_kernels_test"


def kernels_of(context: Context, stream: Callable[[], int | None] = lambda: None) -> Kernels:
    """Return the compiled kernels, which are launched on what `stream` returns."""
    library = _binaries(context) / "libconv_cuda.so"
    if not library.exists():  # the records may have been brought here without it
        compile_kernels(_binaries(context), emulate=context.emulate)
    return Kernels(library, stream)


def _binaries(context: Context) -> Path:
    directory = context.directory / "build"
    directory.mkdir(exist_ok=True)
    return directory


def build(context: Context) -> dict[str, Any]:
    """Compile the kernels for this card: how many, and how many of them spill registers; emulated, as C++."""
    compile_kernels(_binaries(context), emulate=context.emulate)
    log = (_binaries(context) / "compiler.log").read_text()
    spills = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    row = {"kernels": len(spills), "spilling": sum(count > 0 for count in spills)}
    context.record.add("all of them", row)
    return row


def check(context: Context) -> dict[str, Any]:
    """Run the kernels' C++ test, which compares with double precision, alone and under each sanitizer."""
    program = _binaries(context) / _TEST
    _compile_test(context)
    sanitizer = None if context.emulate else shutil.which("compute-sanitizer")
    for tool in context.todo(("test", *(TOOLS if sanitizer else ())), str):
        # initcheck looks for reads of what nobody has written: nothing may be filled beforehand.
        flags = ["--raw"] if tool == "initcheck" else []
        # A tool takes its time; emulated, the rest is what tests/conv/test_native.py runs.
        flags += ["--quick"] * (tool != "test" or context.emulate)
        flags += ["--epilogue"] * (context.emulate and context.quick)
        command = [str(program), *flags]
        if sanitizer is not None and tool != "test":
            command = [sanitizer, "--tool", tool, "--error-exitcode", "9", *command]
        status, words = output_of(command, context)
        if any("Device not supported" in word for word in words):
            break
        context.record.add(tool, {"clean": status == 0, "status": status, "last_words": words[-6:]})
    rows = context.record.rows
    return {"checks": len(rows), "clean": sum(row["clean"] for row in rows)}


def _compile_test(context: Context) -> None:
    program = _binaries(context) / _TEST
    source = str(NATIVE_SOURCES / f"{_TEST}.cc")
    if context.emulate:
        command = ["g++", "-std=gnu++17", "-O1", "-w", source, str(NATIVE_SOURCES / "conv_emulated.cc")]
    else:
        # -lineinfo: the tools then name the line of the kernel.
        command = ["nvcc", "-std=c++17", "-O2", "-lineinfo", "-arch=native", "-x", "cu", source]
        command.append(str(NATIVE_SOURCES / "conv_cuda.cu"))
    done = subprocess.run(
        [*command, "-o", str(program)], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise KernelError(f"{command[0]} failed:\n{done.stderr[-4000:]}")


# Times as fast as cuDNN, in geometric mean over U-Net's layers.
BARS = {"ours_fp32": 0.9, "ours_tf32": 0.7}
AGAINST = {"ours_fp32": "cudnn_fp32", "ours_tf32": "cudnn_tf32"}
_ALGORITHMS = {"ours_fp32": "implicit_gemm", "ours_tf32": "implicit_gemm_tf32"}
_BATCH = 8
PRECISION = "precision of cuDNN"
# Largest relative error of cuDNN's fp32, and of ours; tensor cores round to TF32, and cut their sums off.
_FP32_BOUND, _BOUNDS = 1e-5, {"ours_fp32": 1e-5, "ours_tf32": 2e-3}
_LAYER_S = 0.5
_LEAST_MS = 0.2  # events resolve half a microsecond
_MOST_REPEATS = 50

Contestants = dict[str, Callable[[], object]]


def timing(context: Context) -> dict[str, Any]:
    """Time ours and cuDNN on each layer of U-Net, VGG16 and ResNet50: a row for each layer and direction."""
    torch = None if context.emulate else _torch()
    stream = (lambda: None) if torch is None else (lambda: torch.cuda.current_stream().cuda_stream)
    kernels = kernels_of(context, stream)
    networks = {
        name: LAYERS[name][: 2 if context.emulate else None] for name in ("unet", "vgg16", "resnet50")
    }
    items = [
        (name, i, way) for name, layers in networks.items() for i in range(len(layers)) for way in DIRECTIONS
    ]
    for network, index, direction in context.todo(items, lambda item: " ".join(map(str, item))):
        layer = networks[network][index]
        shape = _shape(_shrunk(layer), 1) if context.emulate else _shape(layer, _BATCH)
        ours = Ours(kernels, torch, shape)
        contestants = ours.contestants(direction) | theirs(torch, shape, direction)
        samples = interleave(torch, contestants, rounds=3 if context.emulate else 21, budget_s=_LAYER_S)
        row = {"network": network, "layer": str(shape), "count": layer.count, "direction": direction}
        row |= {"gflop": 2e-9 * math.prod(shape.y) * shape.k_h * shape.k_w * shape.in_c}
        key = f"{network} {index} {direction}"
        context.record.add(key, row | _figures(samples) | ours.judged(direction))
    if torch is not None and not context.record.has(PRECISION):
        context.record.add(PRECISION, _precision_of_cudnn(torch, _shape(LAYERS["unet"][1], 1)))
    return {"geometric_means": geometric_means(context.record.rows)}


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Unavailable(f"PyTorch is needed here: {error}") from error
    if not torch.cuda.is_available():
        raise Unavailable("PyTorch sees no GPU; rehearse with --emulate")
    torch.manual_seed(0)
    return torch


def _shape(layer: Layer, batch: int) -> Shape:
    """Return a network's layer, padded as its Keras model does."""
    image = (batch, layer.height, layer.width, layer.inputs)
    return Shape.of(image, layer.outputs, kernel=layer.kernel, stride=layer.stride)


def _shrunk(layer: Layer) -> Layer:
    """Return a layer that the emulator computes in a fraction of a second."""
    most = min(layer.inputs, 8), min(layer.outputs, 8)
    return Layer(6, 7, *most, kernel=layer.kernel, stride=layer.stride)


def interleave(
    torch: Any, contestants: Mapping[str, Callable[[], object]], *, rounds: int, budget_s: float
) -> dict[str, list[float]]:
    """Time contestants in rounds, each in an order of its own; return milliseconds by name, round by round.

    No round is begun after `budget_s`, but there are three at least.
    """
    repeats, timed = {}, {}
    for name, work in contestants.items():
        _milliseconds(torch, work, 3)
        once = max(_milliseconds(torch, work), 1e-4)
        repeats[name] = max(1, min(_MOST_REPEATS, round(_LEAST_MS / once)))
        timed[name] = _repeated(torch, work, repeats[name])
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    order, chance = list(contestants), random.Random(0)
    end_s = time.monotonic() + budget_s
    for done in range(rounds):
        if done >= 3 and time.monotonic() > end_s:
            break
        chance.shuffle(order)
        for name in order:
            samples[name].append(_milliseconds(torch, timed[name]) / repeats[name])
    return samples


def _repeated(torch: Any, work: Callable[[], object], repeats: int) -> Callable[[], object]:
    """Return what runs `work` so often: one launch of a CUDA graph."""

    def run() -> None:
        for _ in range(repeats):
            work()

    if torch is None:
        return run
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], object] = graph.replay
    replay()
    return replay


def _milliseconds(torch: Any, work: Callable[[], object], repeats: int = 1) -> float:
    """Return the time of one run, of `repeats` in a row; waits until they are done."""
    if torch is None:
        began_s = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - began_s) * 1e3 / repeats
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / repeats


def _figures(samples: Mapping[str, list[float]]) -> dict[str, Any]:
    ratios = {
        ours: statistics.median(t / o for t, o in zip(samples[theirs], samples[ours], strict=True))
        for ours, theirs in AGAINST.items()
    }
    quartiles = {name: statistics.quantiles(times, n=4) for name, times in samples.items()}
    return {"milliseconds_quartiles": quartiles, "ratios": ratios}


def medians_of_calls(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each layer and direction, with the medians of the calls that timed it."""
    by_key: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "network" in row:
            by_key.setdefault(row["key"], []).append(row)
    merged = []
    for calls in by_key.values():
        times = [call["milliseconds_quartiles"] for call in calls]
        medians = {name: statistics.median(each[name][1] for each in times) for name in times[0]}
        ratios = {name: medians[AGAINST[name]] / medians[name] for name in AGAINST}
        merged.append(calls[0] | {"calls": len(calls), "milliseconds": medians, "ratios": ratios})
    return merged


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

    def __init__(self, kernels: Kernels, torch: Any, shape: Shape) -> None:
        self._kernels, self._torch, self._shape = kernels, torch, shape
        self.tensors = [_normal(torch, *size) for size in (shape.x, shape.filters, shape.y)]
        # One workspace for all: what is queued on one stream uses it in turn.
        needed = (kernels.workspace(shape, way, name) for way in DIRECTIONS for name in _ALGORITHMS.values())
        self.tensors.append(_normal(torch, max(1, *needed)))
        self.tensors += [_normal(torch, *size) for size in (shape.x, shape.filters, shape.y)]
        self._at = [t.ctypes.data if torch is None else t.data_ptr() for t in self.tensors]

    def judged(self, direction: str) -> dict[str, Any]:
        """Return the errors of one direction, relative to double precision; nothing emulated."""
        if self._torch is None:
            return {}
        dx, dfilters, y = self.tensors[-3:]
        wanted = dict(zip(DIRECTIONS, _expected(self._torch, self._shape, *self.tensors[:3]), strict=True))
        got = {"forward": y, "input_gradient": dx, "filter_gradient": dfilters}[direction]
        errors = {}
        for name, run in self.contestants(direction).items():
            got.fill_(float("nan"))
            run()
            errors[name] = _error(got, wanted[direction])
        wrong = [f"{name}: error {error:.1e}" for name, error in errors.items() if not error < _BOUNDS[name]]
        return {"errors": errors, "wrong": wrong}

    def contestants(self, direction: str) -> Contestants:
        """Return what to run for a direction, by name."""
        x, filters, dy, workspace, dx, dfilters, y = self._at
        operands = {
            "forward": (x, filters, y),
            "input_gradient": (dy, filters, dx),
            "filter_gradient": (x, dy, dfilters),
        }[direction]
        launch = functools.partial(self._kernels.launch, direction, self._shape, operands)
        return {
            name: functools.partial(launch, algorithm, workspace) for name, algorithm in _ALGORITHMS.items()
        }


def _normal(torch: Any, *shape: int) -> Any:
    if torch is None:
        return np.random.default_rng(0).standard_normal(shape, np.float32)
    return torch.randn(*shape, device="cuda")


def _expected(torch: Any, shape: Shape, x: Any, filters: Any, dy: Any) -> tuple[Any, Any, Any]:
    """Return y, dx and dfilters in double precision."""
    top, bottom, left, right = shape.padding
    x = x.double().permute(0, 3, 1, 2).requires_grad_()
    filters = filters.double().permute(3, 2, 0, 1).requires_grad_()
    padded = torch.nn.functional.pad(x, (left, right, top, bottom))
    y = torch.nn.functional.conv2d(padded, filters, stride=(shape.stride_h, shape.stride_w))
    dx, dfilters = torch.autograd.grad(y, (x, filters), dy.double().permute(0, 3, 1, 2))
    return y.detach().permute(0, 2, 3, 1), dx.permute(0, 2, 3, 1), dfilters.permute(2, 3, 1, 0)


def _error(got: Any, want: Any) -> float:
    return float((got.double() - want).norm() / max(float(want.norm()), 1e-30))


def theirs(torch: Any, shape: Shape, direction: str) -> Contestants:
    """Return cuDNN by PyTorch in both precisions; emulated, sums by NumPy under the same names."""
    if torch is None:
        x = _normal(None, *shape.x)
        return dict.fromkeys(AGAINST.values(), x.sum)
    return {f"cudnn_{mode}": _cudnn(torch, shape, direction, mode) for mode in ("fp32", "tf32")}


def _cudnn(torch: Any, shape: Shape, direction: str, mode: str) -> Callable[[], object]:
    """Return one direction by cuDNN: channels last, its own search for the best algorithm.

    What is padded unevenly is padded beforehand, in its favour.
    """
    top, bottom, left, right = shape.padding
    even = (top, left) == (bottom, right)
    padding = (top, left) if even else (0, 0)
    x = _normal(torch, *shape.x).permute(0, 3, 1, 2)
    if not even:
        x = torch.nn.functional.pad(x, (left, right, top, bottom))
    x = x.contiguous(memory_format=torch.channels_last)
    filters = _normal(torch, shape.out_c, shape.in_c, shape.k_h, shape.k_w)
    filters = filters.contiguous(memory_format=torch.channels_last)
    dy = _normal(torch, *shape.y).permute(0, 3, 1, 2)
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


def _precision_of_cudnn(torch: Any, shape: Shape) -> dict[str, Any]:
    """Return cuDNN's errors in both modes: whether what is called fp32 is."""
    x, filters, dy = (_normal(torch, *size) for size in (shape.x, shape.filters, shape.y))
    want, _, _ = _expected(torch, shape, x, filters, dy)
    nchw, oihw = x.permute(0, 3, 1, 2), filters.permute(3, 2, 0, 1)
    errors = {}
    for mode in ("fp32", "tf32"):
        _precision(torch, mode)
        y = torch.nn.functional.conv2d(nchw, oihw, padding=(shape.pad_top, shape.pad_left))
        errors[mode] = _error(y.permute(0, 2, 3, 1), want)
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
