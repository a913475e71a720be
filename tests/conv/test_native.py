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
def test_cuda_kernels_as_they_are_are_right_under_the_emulator(test_object, tmp_path) -> None:
    program = tmp_path / "cuda_kernels_test"
    compile_alone(test_object, conv_build.NATIVE_SOURCES / "conv_emulated.cc", "-o", program)
    assert ": 0 of" in run(program, "--quick")


# What is taken out of a kernel, and what the emulator must then say. Most of these give right results on the
# CPU all the same, and on some GPUs.
MUTATIONS = {
    "no wait for the tiles to multiply": (
        *("cuda_gemm.h", "    WaitForCopies<kStages - 2>();\n", "", "missing wait"),
    ),
    "no barrier before the reads of the rows": (
        *("cuda_gemm.h", "* Config::kRows);\n  __syncthreads();\n", "* Config::kRows);\n", "race"),
    ),
    "a halo one pixel short": (
        *("cuda_kernels.h", "i < kSharedInputs * halo; i", "i < kSharedInputs * (halo - 1); i"),
        "uninitialised",
    ),
    "a return ahead of a barrier": (
        *(
            "cuda_kernels.h",
            "  __syncthreads();\n  if (row > 0 ",
            "  if (row > 6) return;\n  __syncthreads();\n  if (row > 0 ",
        ),
        "divergent barrier",
    ),
    "no barrier before the next channels": (
        *("cuda_kernels.h", "    __syncthreads();\n  }\n  if (corner", "  }\n  if (corner", "race"),
    ),
}


@pytest.fixture(scope="module")
def test_object(tmp_path_factory) -> Path:
    """The test of the kernels, compiled; each mutant is another library to link it with."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    path: Path = tmp_path_factory.mktemp("mutants") / "cuda_kernels_test.o"
    compile_alone(conv_build.NATIVE_SOURCES / "cuda_kernels_test.cc", "-c", "-o", path)
    return path


def compile_alone(*arguments) -> None:
    subprocess.run(["g++", "-std=gnu++17", "-O1", "-w", *arguments], check=True, timeout=120)


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_emulator_finds_what_is_taken_out_of_a_kernel(test_object, tmp_path, mutation: str) -> None:
    file, old, new, finding = MUTATIONS[mutation]
    native, program = tmp_path / "native", tmp_path / "mutant"
    shutil.copytree(conv_build.NATIVE_SOURCES, native)
    text = (native / file).read_text()
    assert text.count(old) == 1, "the kernel has changed: write the mutation anew"
    (native / file).write_text(text.replace(old, new))
    compile_alone(test_object, native / "conv_emulated.cc", "-o", program)
    part = ["--epilogue"] if mutation == "a return ahead of a barrier" else []
    command = [program, "--quick", "--first", *part]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert result.returncode == 1, result.stdout + result.stderr
    assert finding in result.stdout.split("FOUND ", 1)[1]


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
