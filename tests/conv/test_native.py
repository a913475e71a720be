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
    log: list[str] = []
    configure = [
        toolchain.cmake,
        "-S",
        str(conv_build.NATIVE_SOURCES),
        "-B",
        str(directory),
        "-G",
        toolchain.generator,
    ]
    if toolchain.ninja:
        configure.append(f"-DCMAKE_MAKE_PROGRAM={toolchain.ninja}")
    conv_build._run([*configure, *options], log)
    conv_build._run([toolchain.cmake, "--build", str(directory), "--target", target], log)
    return directory / target


def run(program: Path) -> str:
    result = subprocess.run([program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_cuda_kernels_under_the_emulator(toolchain, tmp_path) -> None:
    assert ": 0 of" in run(build(toolchain, tmp_path, "cuda_emulator_test"))


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("target", "sanitizers"),
    [
        ("kernels_test", "address,undefined"),
        ("kernels_test", "thread"),
        ("cuda_emulator_test", "address,undefined"),  # of one thread, whose fibers "thread" does not know
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


@pytest.mark.parametrize("architecture", ["75", "80", "90"])
def test_cuda_kernels_compile_without_spills(tmp_path, architecture: str) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on the path")
    source = conv_build.NATIVE_SOURCES / "conv_cuda.cu"
    command = [
        nvcc,
        "-std=c++17",
        "-O3",
        f"-gencode=arch=compute_{architecture},code=[sm_{architecture},compute_{architecture}]",
    ]
    command += ["-Xptxas=-v", "-c", str(source), "-o", str(tmp_path / "conv.o")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    spills = [line for line in result.stderr.splitlines() if "spill stores" in line]
    assert spills
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)
