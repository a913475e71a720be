"""Whether the kernels are right: what they compile to, their results, what compute-sanitizer finds."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from scripts.gpu.cuda_arrays import NumpyArrays, TorchArrays
from scripts.gpu.cuda_library import (
    ALGORITHMS,
    DIRECTIONS,
    NATIVE_SOURCES,
    KernelError,
    Kernels,
    Shape,
    compile_kernels,
)
from scripts.gpu.shapes import LAYERS, Case, cases, layer_shape
from scripts.gpu.stages import Context, Unavailable, output_of

__all__ = ["BOUNDS", "arrays_of", "build", "check", "check_shape", "kernels_of", "resources", "sanitize"]

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_EPILOGUES = ((1, 1), (1000, 67), (70000, 3), (24576, 64))
_TEST = "cuda_kernels_test"
# Largest relative error; of TF32 against operands that are rounded first. Tensor cores cut their sums off.
BOUNDS = {name: 2e-5 if name.endswith("tf32") else 5e-6 for name in ALGORITHMS}


def arrays_of(context: Context) -> Any:
    """Return PyTorch's arrays, or NumPy's for the emulator."""
    if context.emulate:
        return NumpyArrays()
    try:
        arrays = TorchArrays()
    except ImportError as error:
        raise Unavailable(f"PyTorch is needed here: {error}") from error
    if not arrays.torch.cuda.is_available():
        raise Unavailable("PyTorch sees no GPU; rehearse with --emulate")
    return arrays


def kernels_of(context: Context) -> Kernels:
    """Return the compiled kernels."""
    library = _binaries(context) / "libconv_cuda.so"
    if not library.exists():  # the records may have been brought here without it
        _compile(context)
    return Kernels(library)


def _binaries(context: Context) -> Path:
    directory = context.directory / "build"
    directory.mkdir(exist_ok=True)
    return directory


def _compile(context: Context) -> None:
    try:
        compile_kernels(_binaries(context), emulate=context.emulate)
    except KernelError as error:
        if "not on the path" in str(error):
            raise Unavailable(str(error)) from error
        raise


def build(context: Context) -> dict[str, Any]:
    """Compile the kernels for this card: a row for each, of its registers, spills and shared memory."""
    _compile(context)
    log = (_binaries(context) / "compiler.log").read_text()
    if context.emulate:
        nothing = dict.fromkeys(("registers", "static_shared_bytes", "spilled_bytes"), "-")
        context.record.add("all of them, as C++", nothing)
    spilling = 0
    for name, numbers in resources(log).items():
        context.record.add(name, numbers)
        spilling += numbers["spilled_bytes"] > 0
    return {"kernels": len(context.record.rows), "spilling": spilling}


def resources(log: str) -> dict[str, dict[str, int]]:
    """Return what `ptxas -v` says of each kernel."""
    found: dict[str, dict[str, int]] = {}
    name, spilled = "", 0
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = _kernel_name(match[1])
        elif match := re.search(r"(\d+) bytes spill stores", line):
            spilled = int(match[1])
        elif (match := re.search(r"Used (\d+) registers", line)) and name:
            shared = re.search(r"(\d+) bytes smem", line)
            found[name] = {
                "registers": int(match[1]),
                "static_shared_bytes": int(shared[1]) if shared else 0,
                "spilled_bytes": spilled,
            }
    return found


def _kernel_name(mangled: str) -> str:
    parts = re.findall(r"(ImplicitGemm|SharedMemory|EpilogueGradient|AddSlices)Kernel", mangled)
    problem = re.findall(r"(Forward|InputGradient|FilterGradient)Problem", mangled)
    tiles = [
        f"{'Tf32' if int(tf32) else 'Fp32'} {rows}×{columns}, copies of {' and '.join(dict.fromkeys(copies))}"
        for tf32, rows, columns, *copies in re.findall(
            r"GemmConfigILb(\d)ELi(\d+)ELi(\d+)ELi(\d)ELi(\d)E", mangled
        )
    ]
    rows = [f"by {count}" for count in re.findall(r"AddSlicesKernelILi(\d+)E", mangled)]
    return " ".join([*parts[:1], *problem[:1], *tiles[:1], *rows[:1]]) or mangled


def check(context: Context) -> dict[str, Any]:
    """Compare every kernel and both gradients with double precision: a row for each shape."""
    arrays, kernels = arrays_of(context), kernels_of(context)
    shapes = {str(case.shape): case.shape for case in _cases(context)}
    if not context.emulate:
        for network, batch in (("unet", 2), ("resnet50", 2)):
            shapes |= {str(s): s for layer in LAYERS[network] for s in [layer_shape(layer, batch)]}
    for name, shape in context.todo(shapes.items(), lambda item: item[0]):
        errors = check_shape(kernels, arrays, shape)
        wrong = [what for what, error in errors.items() if not error < BOUNDS[what.split(",")[0]]]
        context.record.add(name, {"errors": errors, "wrong": wrong})
    for pixels, channels in context.todo(_EPILOGUES[: 2 if context.emulate else None], _epilogue_key):
        errors = _check_epilogue(kernels, arrays, pixels, channels)
        wrong = [what for what, error in errors.items() if not error < 5e-6]
        context.record.add(_epilogue_key((pixels, channels)), {"errors": errors, "wrong": wrong})
    return _summary(context.record.rows)


def _cases(context: Context) -> list[Case]:
    """All shapes of the CPU tests; for the emulator some of those that it computes quickly."""
    everything = list(cases())
    if not context.emulate:
        return everything
    small = [case for case in everything if case.height * case.width * case.inputs * case.outputs < 30_000]
    return small[:: len(small) // (4 if context.quick else 16)]


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


def _epilogue_key(size: tuple[int, int]) -> str:
    return f"bias and ReLU, {size[0]} pixels of {size[1]} channels"


def _check_epilogue(kernels: Kernels, arrays: Any, pixels: int, channels: int) -> dict[str, float]:
    dy, y = arrays.normal(pixels, channels), arrays.normal(pixels, channels)
    dz, dbias = arrays.filled(pixels, channels), arrays.filled(channels)
    workspace = arrays.filled(kernels.epilogue_workspace(pixels, channels))
    kernels.epilogue_gradient(pixels, channels, *[arrays.address(v) for v in (dy, y, dz, dbias, workspace)])
    want = arrays.host(dy).astype("float64") * (arrays.host(y) > 0)
    host = NumpyArrays()
    return {
        "epilogue, sums": host.error(arrays.host(dz), want),
        "epilogue, bias": host.error(arrays.host(dbias), want.sum(0)),
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    largest: dict[str, float] = {}
    for row in rows:
        for what, error in row["errors"].items():
            largest[what] = max(largest.get(what, 0.0), error)
    checks = sum(len(row["errors"]) for row in rows)
    return {"checks": checks, "wrong": sum(len(row["wrong"]) for row in rows), "largest_errors": largest}


def sanitize(context: Context) -> dict[str, Any]:
    """Run the kernels' C++ test under each tool of compute-sanitizer; emulated, under the emulator."""
    program = _binaries(context) / _TEST
    tools = ("emulator",) if context.emulate else TOOLS
    sanitizer = None if context.emulate else shutil.which("compute-sanitizer")
    if sanitizer is None and not context.emulate:
        raise Unavailable("compute-sanitizer is not on the path; it comes with the CUDA toolkit")
    _compile_test(context)
    for tool in context.todo(tools, str):
        # initcheck looks for reads of what nobody has written: nothing may be filled beforehand.
        flags = ["--quick", *(["--raw"] if tool == "initcheck" else [])]
        if context.emulate and context.quick:  # the rest is what tests/conv/test_native.py runs
            flags.append("--epilogue")
        command = [str(program), *flags]
        if sanitizer is not None:
            command = [sanitizer, "--tool", tool, "--error-exitcode", "9", *command]
        status, words = output_of(command, context)
        if any("Device not supported" in word for word in words):
            raise Unavailable("compute-sanitizer does not support this machine's device")
        row = {"clean": status == 0, "status": status, "last_words": words[-6:]}
        context.record.add(tool, row)
    return {"tools": len(context.record.rows), "clean": sum(row["clean"] for row in context.record.rows)}


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
