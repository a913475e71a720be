"""The CUDA kernels by ctypes: compiled by nvcc, or as C++ for the emulator, and called on addresses.

Needs neither TensorFlow nor a module of overlap_train.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.gpu.stages import ROOT, Unavailable

NATIVE_SOURCES = ROOT / "overlap_train" / "conv" / "native"
# enum CudaAlgorithm in conv_cuda.h.
ALGORITHMS = {"shared_memory": 0, "implicit_gemm": 1, "implicit_gemm_tf32": 2}
DIRECTIONS = ("forward", "input_gradient", "filter_gradient")


class KernelError(RuntimeError):
    """A kernel could not be compiled or launched; the message names the step and CUDA's error."""


class Shape(ctypes.Structure):
    """ConvShape of geometry.h."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "in_h", "in_w", "in_c", "out_h", "out_w", "out_c"),
            *("k_h", "k_w", "stride_h", "stride_w", "pad_top", "pad_left"),
        )
    ]

    @classmethod
    def of(cls, image: Sequence[int], outputs: int, *, kernel: int = 3, stride: int = 1) -> Shape:
        """Return the convolution of images [batch, height, width, channels], padded as TensorFlow does."""
        batch, height, width, inputs = image
        (out_h, top), (out_w, left) = (_window(n, kernel, stride) for n in (height, width))
        return cls(
            batch, height, width, inputs, out_h, out_w, outputs, *[kernel] * 2, *[stride] * 2, top, left
        )

    @property
    def x(self) -> tuple[int, ...]:
        return self.batch, self.in_h, self.in_w, self.in_c

    @property
    def filters(self) -> tuple[int, ...]:
        return self.k_h, self.k_w, self.in_c, self.out_c

    @property
    def y(self) -> tuple[int, ...]:
        return self.batch, self.out_h, self.out_w, self.out_c

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Zeros around the input: top, bottom, left, right."""
        bottom = (self.out_h - 1) * self.stride_h + self.k_h - self.in_h - self.pad_top
        right = (self.out_w - 1) * self.stride_w + self.k_w - self.in_w - self.pad_left
        return self.pad_top, max(bottom, 0), self.pad_left, max(right, 0)

    def __str__(self) -> str:
        image = "×".join(map(str, self.x))
        padding = "padded" if any(self.padding) else "not padded"
        return f"{image}→{self.out_c}, {self.k_h}×{self.k_w}/{self.stride_h}, {padding}"


def _window(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return outputs and zeros in front, as geometry.h's WindowFor."""
    out = -(-size // stride)
    return out, max((out - 1) * stride + kernel - size, 0) // 2


class Kernels:
    """The functions of conv_cuda.h in a library, on addresses; a launch that fails is an exception.

    `stream` returns where a kernel is launched: a CUDA stream's address, or None for the default one.
    """

    def __init__(self, path: Path, stream: Callable[[], int | None] = lambda: None) -> None:
        self._stream = stream
        self._library = ctypes.CDLL(str(path))
        self._library.overlap_conv_error_name.restype = ctypes.c_char_p
        for what in DIRECTIONS:
            getattr(self._library, f"overlap_conv_{what}_workspace").restype = ctypes.c_longlong

    def workspace(self, shape: Shape, direction: str, algorithm: str) -> int:
        """Return how many floats of workspace one of DIRECTIONS needs, 0 for none."""
        function = getattr(self._library, f"overlap_conv_{direction}_workspace")
        return int(function(ctypes.byref(shape), ALGORITHMS[algorithm]))

    def launch(
        self, direction: str, shape: Shape, operands: tuple[int, int, int], algorithm: str, workspace: int
    ) -> None:
        """Compute one of DIRECTIONS: x, filters into y; dy, filters into dx; x, dy into dfilters."""
        name, stream = f"overlap_conv_{direction}_cuda", ctypes.c_void_p(self._stream())
        *given, result = _pointers(*operands)
        plain = (*_pointers(0), 0) if direction == "forward" else ()  # no bias, no ReLU
        arguments = *given, *plain, result, ALGORITHMS[algorithm], *_pointers(workspace)
        error = getattr(self._library, name)(ctypes.byref(shape), *arguments, stream)
        if error:
            text = self._library.overlap_conv_error_name(error).decode()
            raise KernelError(f"{name} failed with {text} ({error})")


def _pointers(*addresses: int) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(address) for address in addresses]


def compile_kernels(directory: Path, *, emulate: bool = False) -> Path:
    """Compile conv_cuda.cu into `directory`, for the GPU here or for the emulator.

    What the compiler says goes into `compiler.log` next to the library.

    Raises:
        Unavailable: there is no compiler.
        KernelError: it fails.
    """
    library = directory / "libconv_cuda.so"
    name = "g++" if emulate else "nvcc"
    compiler = shutil.which(name)
    if compiler is None:
        remedy = "install a C++17 compiler" if emulate else "install the CUDA toolkit, 13 or newer"
        raise Unavailable(f"{name} is not on the path; {remedy}")
    if emulate:
        command = [compiler, "-std=gnu++17", "-O1", "-w", "-fPIC", str(NATIVE_SOURCES / "conv_emulated.cc")]
    else:
        command = [compiler, "-std=c++17", "-O3", "-Xcompiler=-fPIC", "-Xptxas=-v", "-arch=native"]
        command.append(str(NATIVE_SOURCES / "conv_cuda.cu"))
    command += ["-shared", "-o", str(library)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    (directory / "compiler.log").write_text(result.stdout + result.stderr)
    if result.returncode != 0:
        raise KernelError(f"{name} failed:\n{result.stderr[-4000:]}")
    return library
