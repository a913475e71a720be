"""Which wheels TensorFlow takes on the GPU machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.gpu.pieces import PieceError

__all__ = ["fetch"]

# TensorFlow for Python 3.12 and what it and this package import, as far as the machine has not got it, or not
# in a version that goes with it. Of CUDA 12 only what the machine's CUDA 13 does not replace (slim.py).
_BINARIES = (
    *("tensorflow==2.21.*", "keras>=3.15,<3.17", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cupti-cu12"),
    *("astunparse", "flatbuffers", "gast", "google-pasta", "grpcio", "h5py<3.15", "ml_dtypes", "namex"),
    *("numpy==2.4.*", "optree", "protobuf", "termcolor", "wrapt"),
    *("tensorflow-datasets", "tensorflow-metadata", "googleapis-common-protos", "array_record", "dm-tree"),
    *("docstring-parser", "etils", "fsspec", "immutabledict", "importlib_resources", "simple_parsing"),
    *("toml", "zipp", "blessed", "jinxed", "wcwidth"),
)
# Keras on JAX, whose CUDA 13 is the machine's.
_JAX = (
    *("jax==0.10.*", "jaxlib==0.10.*", "jax-cuda13-plugin==0.10.*", "jax-cuda13-pjrt==0.10.*"),
    *("opt_einsum", "scipy"),
)
_SOURCES = ("gpustat", "promise")  # which have no wheels, and nothing to compile
_GLIBC = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
_PLATFORMS = (*(f"manylinux_{version}_x86_64" for version in _GLIBC), "manylinux2014_x86_64")


def fetch(into: Path, *, jax: bool = False) -> None:
    """Download the wheels for the GPU machine, some 700 MB, and JAX's on request. Needs a network and pip."""
    platforms = [flag for name in _PLATFORMS for flag in ("--platform", name)]
    abis = [flag for name in ("cp312", "abi3", "none") for flag in ("--abi", name)]
    python = ("--python-version", "3.12", "--implementation", "cp", *abis)
    wanted = (*_BINARIES, *(_JAX if jax else ()))
    _pip("download", "--only-binary=:all:", *python, *platforms, "--dest", str(into), *wanted)
    _pip("wheel", "--wheel-dir", str(into), *_SOURCES)


def _pip(command: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", command, "--no-deps", *arguments], check=False)
    if done.returncode != 0:
        raise PieceError(f"pip {command} ended with status {done.returncode}; what is there stays")
