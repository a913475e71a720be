"""TensorFlow for the GPU machine: which wheels, and a rehearsal of bringing them with made-up ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from scripts.gpu.loading import ROOT
from scripts.gpu.pieces import MANIFEST, PieceError, Store, cut
from scripts.gpu.stages import Context

__all__ = ["fetch", "rehearse"]

# TensorFlow with CUDA 12 for Python 3.12, and what else this package imports.
_REQUIREMENTS = (
    "tensorflow[and-cuda]==2.21.*",
    "keras==3.15.*",
    "tensorboard==2.20.*",
    *(
        "tensorflow-datasets",
        "importlib_resources",
        "gpustat",
        "nvidia-ml-py",
        "psutil",
        "scikit-learn",
        "scipy",
    ),
    *("tqdm", "matplotlib", "cmake", "ninja"),
)
_GLIBC = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
_PLATFORMS = (*(f"manylinux_{version}_x86_64" for version in _GLIBC), "manylinux2014_x86_64")
_PIECE_BYTES = 1000
_PER_COMMAND = 3


def fetch(into: Path) -> None:
    """Download the wheels for the GPU machine, some gigabytes. Needs a network and pip.

    Raises:
        PieceError: pip fails.
    """
    platforms = [flag for name in _PLATFORMS for flag in ("--platform", name)]
    python = ("--python-version", "3.12", "--implementation", "cp", "--abi", "cp312")
    command = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", *python, *platforms]
    done = subprocess.run([*command, "--dest", str(into), *_REQUIREMENTS], check=False)
    if done.returncode != 0:
        raise PieceError(f"pip ended with status {done.returncode}; what it has downloaded stays in {into}")


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
    import tensorflow as tf

    build = dict(tf.sysconfig.get_build_info())
    row = {"tensorflow": tf.version.VERSION, "cuda": str(build.get("cuda_version")), "wrong": []}
    context.record.add("installed", row)
    return row


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
