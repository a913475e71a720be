"""TensorFlow for the GPU machine: which wheels, and a rehearsal of bringing them with made-up ones."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from scripts.gpu.pieces import MANIFEST, PieceError, Store, cut
from scripts.gpu.stages import ROOT, Context

__all__ = ["fetch", "rehearse"]

# TensorFlow for Python 3.12 and what it and this package import, as far as the machine has not got it, or not
# in a version that goes with it. Of CUDA 12 only what the machine's CUDA 13 does not replace (slim.py).
_BINARIES = (
    *("tensorflow==2.21.*", "keras==3.15.*", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cupti-cu12"),
    *("astunparse", "flatbuffers", "gast", "google-pasta", "grpcio", "h5py<3.15", "ml_dtypes", "namex"),
    *("numpy==2.4.*", "optree", "protobuf", "termcolor", "wrapt"),
    *("tensorflow-datasets", "tensorflow-metadata", "googleapis-common-protos", "array_record", "dm-tree"),
    *("docstring-parser", "etils", "fsspec", "immutabledict", "importlib_resources", "simple_parsing"),
    *("toml", "zipp", "blessed", "jinxed", "wcwidth"),
)
_SOURCES = ("gpustat", "promise")  # which have no wheels, and nothing to compile
_GLIBC = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
_PLATFORMS = (*(f"manylinux_{version}_x86_64" for version in _GLIBC), "manylinux2014_x86_64")
_PIECE_BYTES = 1000
_PER_COMMAND = 3


def fetch(into: Path) -> None:
    """Download the wheels for the GPU machine, some 700 MB. Needs a network and pip."""
    platforms = [flag for name in _PLATFORMS for flag in ("--platform", name)]
    abis = [flag for name in ("cp312", "abi3", "none") for flag in ("--abi", name)]
    python = ("--python-version", "3.12", "--implementation", "cp", *abis)
    _pip("download", "--only-binary=:all:", *python, *platforms, "--dest", str(into), *_BINARIES)
    _pip("wheel", "--wheel-dir", str(into), *_SOURCES)


def _pip(command: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", command, "--no-deps", *arguments], check=False)
    if done.returncode != 0:
        raise PieceError(f"pip {command} ended with status {done.returncode}; what is there stays")


def rehearse(context: Context) -> dict[str, Any]:
    """Bring made-up wheels in pieces, over several commands, with one damaged and one cut off on the way.

    Without `--emulate`: say what has been brought.
    """
    if not context.emulate:
        return _installed(context)
    folder = context.directory / "pieces"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return _rehearse(context, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _installed(context: Context) -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    build = dict(tf.sysconfig.get_build_info())
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    with tf.device(device):  # so that the libraries are loaded which the runs will use
        image = tf.random.normal((1, 8, 8, 4))
        tf.nn.conv2d(image, tf.random.normal((3, 3, 4, 4)), 1, "SAME")
        product = tf.matmul(image[0, 0], image[0, 0], transpose_b=True)
    row = {
        "tensorflow": tf.version.VERSION,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "cuda": str(build.get("cuda_version")),
        "libraries": " ".join(_cuda_libraries()),
        "wrong": [] if product.device.endswith(device) else [f"a product on {product.device}"],
    }
    context.record.add("installed", row)
    return row


def _cuda_libraries() -> list[str]:
    """Return the files of CUDA's libraries that this process has loaded: not always TensorFlow's own."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    files = {Path(line.split(maxsplit=5)[-1]).name for line in lines}
    return sorted(name for name in files if re.match(r"lib(cublas|cudnn|cudart|cufft|cusolver)", name))


def _rehearse(context: Context, folder: Path) -> dict[str, Any]:
    manifest = cut(_made_up_wheels(folder / "wheels"), folder / "cut", piece_bytes=_PIECE_BYTES)
    names = [entry["name"] for entry in manifest.pieces]
    shares = [names[i : i + _PER_COMMAND] for i in range(0, len(names), _PER_COMMAND)]
    refused = 0
    for number, share in enumerate([*shares, shares[0]]):
        sent = folder / f"command-{number}"
        sent.mkdir()
        for name in (MANIFEST, *share):
            shutil.copy(folder / "cut" / name, sent / name)
        if number == 0:
            (sent / share[0]).write_bytes(b"damaged on the way")
        refused += _command("bring", str(sent), "--store", str(folder / "store")) != 0
    site = Store(folder / "store").assemble()
    same = all(
        (site / f"made_up_{i}" / "__init__.py").read_text().startswith(f"VALUE = {i}\n") for i in range(3)
    )
    row = {"pieces": len(names), "commands": len(shares) + 1, "refused": refused}
    wrong = ([] if same else ["what came is not what was cut"]) + (
        [] if refused == 1 else ["a damaged piece"]
    )
    context.record.add("made-up wheels", row | {"wrong": wrong})
    return row


def _command(*arguments: str) -> int:
    """Run one command as it is run on the GPU machine, in a process of its own."""
    command = [sys.executable, "-m", "scripts.gpu.tensorflow_runs", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=60).returncode


def _made_up_wheels(folder: Path) -> list[Path]:
    folder.mkdir(parents=True)
    made = []
    for number in range(3):
        path = folder / f"made_up_{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"made_up_{number}/__init__.py", f"VALUE = {number}\n" + "#" * 1500 * (number + 1))
        made.append(path)
    return made
