"""The C++ tests: CUDA kernels under the emulator, CPU kernels under the sanitizers, and what ptxas says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from overlap_train.conv import build as conv_build
from overlap_train.errors import NativeUnavailableError


@pytest.fixture(scope="module")
def toolchain() -> conv_build.Toolchain:
    try:
        return conv_build.find_toolchain()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def build(toolchain: conv_build.Toolchain, directory: Path, target: str, *options: str) -> Path:
    configure = [toolchain.cmake, "-S", str(conv_build.NATIVE_SOURCES), "-B", str(directory)]
    configure += ["-G", toolchain.generator]
    if toolchain.ninja:
        configure.append(f"-DCMAKE_MAKE_PROGRAM={toolchain.ninja}")
    conv_build.run([*configure, *options])
    conv_build.run([toolchain.cmake, "--build", str(directory), "--target", target])
    return directory / target


def run(program: Path, *options: str) -> str:
    result = subprocess.run([program, *options], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def build_directory(tmp_path_factory) -> Path:
    """What the targets without options share, which CMake describes once."""
    return tmp_path_factory.mktemp("native")


# By default the kernels alone, on few shapes.
@pytest.mark.nightly
@pytest.mark.parametrize(
    "target", ["cuda_emulator_test", "cuda_tiles_test", "cuda_launch_test", "cuda_kernels_test"]
)
def test_cuda_kernels_under_the_emulator(toolchain, build_directory, target: str) -> None:
    assert ": 0 of" in run(build(toolchain, build_directory, target))


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("target", "sanitizers"),
    [
        ("kernels_test", "address,undefined"),
        ("kernels_test", "thread"),
        # Of one thread, whose fibers "thread" does not know.
        ("cuda_emulator_test", "address,undefined"),
        ("cuda_tiles_test", "address,undefined"),
        ("cuda_launch_test", "address,undefined"),
        ("cuda_kernels_test", "address,undefined"),
    ],
)
def test_kernels_under_the_sanitizers(toolchain, tmp_path, target: str, sanitizers: str) -> None:
    run(build(toolchain, tmp_path, target, f"-DOVERLAP_CONV_SANITIZE={sanitizers}"))


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_kernels_of_every_instruction_set(toolchain, tmp_path_factory, monkeypatch, isa: str) -> None:
    directory = tmp_path_factory.getbasetemp() / "kernels"
    monkeypatch.setenv("OVERLAP_TRAIN_CONV_ISA", isa)
    output = run(build(toolchain, directory, "kernels_test"))
    if isa not in output:
        pytest.skip(f"this CPU has no {isa}")


@pytest.fixture
def nvcc() -> str:
    return shutil.which("nvcc") or pytest.skip("no nvcc on the path")


@pytest.mark.nightly
def test_cuda_kernels_test_compiles_for_a_gpu(nvcc, tmp_path) -> None:
    source = conv_build.NATIVE_SOURCES / "cuda_kernels_test.cc"
    command = [nvcc, "-std=c++17", "-O0", "-arch=sm_90", "-x", "cu", "-c", str(source)]
    subprocess.run([*command, "-o", str(tmp_path / "test.o")], check=True)


@pytest.mark.parametrize("architectures", [("75", "90"), ("80",)], ids=" and ".join)
@pytest.mark.nightly
def test_cuda_kernels_compile_without_spills(nvcc, tmp_path, architectures) -> None:
    source = conv_build.NATIVE_SOURCES / "conv_cuda.cu"
    command = [nvcc, "-std=c++17", "-O3"]
    command += [
        f"-gencode=arch=compute_{number},code=[sm_{number},compute_{number}]" for number in architectures
    ]
    command += ["-Xptxas=-v", "-c", str(source), "-o", str(tmp_path / "conv.o")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    spills = [line for line in result.stderr.splitlines() if "spill stores" in line]
    assert len(spills) == 24 * len(architectures), "one line for each kernel"
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)
