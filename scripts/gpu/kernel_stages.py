"""Whether the kernels are right: what they compile to, and their C++ test, also under compute-sanitizer."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.gpu.cuda_library import NATIVE_SOURCES, KernelError, Kernels, compile_kernels
from scripts.gpu.stages import Context, Unavailable, output_of

__all__ = ["build", "check", "kernels_of"]

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_TEST = "cuda_kernels_test"


def kernels_of(context: Context, stream: Callable[[], int | None] = lambda: None) -> Kernels:
    """Return the compiled kernels, which are launched on what `stream` returns."""
    library = _binaries(context) / "libconv_cuda.so"
    if not library.exists():  # the records may have been brought here without it
        _compile(context)
    return Kernels(library, stream)


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
    """Compile the kernels for this card: how many, and how many of them spill registers; emulated, as C++."""
    _compile(context)
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
