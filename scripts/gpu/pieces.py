"""Gigabytes brought to a machine in pieces: fetched, made small, cut, checked by digest, put together once.

    fetch     downloads the wheels of TensorFlow for the machine with the GPU
    blank     leaves only one generation's machine code in a library; zeros, for the rest, pack well
    slim      packs wheels anew: blanked, without headers and tests, by LZMA
    cut       wheels -> piece-000, piece-001, ... and manifest.json, where there is a network
    Store     takes what a command has brought, until no piece is missing; then unpacks the wheels into `site`
    lend      gives CUDA 13's libraries of the machine the names by which a TensorFlow for CUDA 12 asks

The pieces, joined, are a tar archive of the wheels. Every step may be cut off and repeated, and no piece is
taken whose SHA-256 is not the manifest's. A fat binary (fatbinary_section.h of CUDA, and what cuobjdump
shows) is a header and entries, each with its kind (1 PTX, 2 machine code), the sizes of its header and its
payload, and the generation it is for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from scripts.gpu.stages import write_atomically

MANIFEST = "manifest.json"
PIECE_BYTES = 60 << 20  # a command may bring 64 MiB in all


class PieceError(RuntimeError):
    """Pieces are missing or damaged; the message says which, and what to do."""


def cut(files: list[Path], into: Path, *, piece_bytes: int = PIECE_BYTES) -> dict[str, str]:
    """Cut files into pieces of at most `piece_bytes`; return their digests by name, the manifest."""
    if not files:
        raise PieceError("there is nothing to cut; fetch the wheels first")
    into.mkdir(parents=True, exist_ok=True)
    for stale in into.glob("piece-*"):
        stale.unlink()
    manifest: dict[str, str] = {}
    whole = into / "wheels.tar"
    with tarfile.open(whole, "w") as archive:
        for file in files:
            archive.add(file, file.name)
    with whole.open("rb") as source:
        while data := source.read(piece_bytes):
            name = f"piece-{len(manifest):03d}"
            (into / name).write_bytes(data)
            manifest[name] = hashlib.sha256(data).hexdigest()
    whole.unlink()
    write_atomically(into / MANIFEST, json.dumps(manifest, indent=1).encode())
    return manifest


def read_manifest(path: Path) -> dict[str, str]:
    """Return the digests of the pieces by name, in order."""
    try:
        manifest = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise PieceError(f"{path} is no manifest of pieces ({error}); bring it with every command") from error
    if bad := [name for name in manifest if not re.fullmatch(r"piece-\d+", name)]:
        raise PieceError(f"{path} names {bad[0]!r}, which is no piece; cut the pieces anew")
    return manifest


class Store:
    """Where the pieces come together, on the machine that needs the files."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._manifest, self.site = directory, directory / MANIFEST, directory / "site"

    def bring(self, folder: Path) -> list[str]:
        """Take the pieces of a folder, and say which are still missing; what is damaged is refused."""
        manifest, damaged = read_manifest(folder / MANIFEST), []
        if not self._manifest.exists():
            shutil.copyfile(folder / MANIFEST, self._manifest)
        elif read_manifest(self._manifest) != manifest:
            raise PieceError(f"{self._directory} holds pieces of another manifest; empty it, or name another")
        for name in self.missing():
            if (folder / name).exists():
                data = (folder / name).read_bytes()
                if hashlib.sha256(data).hexdigest() == manifest[name]:
                    write_atomically(self._directory / name, data)
                else:
                    damaged.append(name)
        if damaged:
            raise PieceError(f"damaged on the way: {', '.join(damaged)}; bring them again")
        return self.missing()

    def missing(self) -> list[str]:
        """Return the names of the pieces that have not come yet."""
        names = read_manifest(self._manifest)
        return [name for name in names if not (self.site.exists() or (self._directory / name).exists())]

    def assemble(self) -> Path:
        """Join the pieces, unpack the wheels, and return the folder for PYTHONPATH; once."""
        if missing := self.missing():
            raise PieceError(f"{len(missing)} pieces are missing, from {missing[0]} on; bring them first")
        if self.site.exists():
            return self.site
        whole, wheels, draft = (self._directory / name for name in ("wheels.tar", "wheels", "draft"))
        shutil.rmtree(draft, ignore_errors=True)
        pieces = [self._directory / name for name in read_manifest(self._manifest)]
        with whole.open("wb") as joined:
            for piece in pieces:
                joined.write(piece.read_bytes())
        with tarfile.open(whole) as archive:
            archive.extractall(wheels, filter="data")
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as content:
                content.extractall(draft)  # which keeps to `draft`, whatever the names in it
        os.replace(draft, self.site)
        for leftover in (whole, *pieces):
            leftover.unlink()
        shutil.rmtree(wheels)
        return self.site


_MAGIC = struct.pack("<I", 0xBA55ED50)
_HEADER, _ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")
_PTX, _MACHINE_CODE = 1, 2
_LEFT_OUT = ("tensorflow/include/", "/tests/")
_LIBRARIES_FROM_BYTES = 1 << 20
# What TensorFlow for CUDA 12 opens, and what does the same in CUDA 13.
_LENT = {
    "libcublas.so.12": "libcublas.so.13",
    "libcublasLt.so.12": "libcublasLt.so.13",
    "libcufft.so.11": "libcufft.so.12",
    "libcusolver.so.11": "libcusolver.so.12",
    "libcusparse.so.12": "libcusparse.so.12",
    "libcudnn.so.9": "libcudnn.so.9",
}


class _Entry(NamedTuple):
    kind: int
    generation: int
    begin: int
    size: int


def blank(library: bytearray, generation: int) -> int:
    """Overwrite what is not for `generation` (90 for H100) with zeros, in place.

    A fat binary that has nothing for it is left whole. PTX stays only where there is no machine code.

    Returns:
        How many bytes were overwritten.
    """
    blanked = 0
    for entries in _fat_binaries(library):
        mine = [entry for entry in entries if entry.generation == generation]
        kept = [entry for entry in mine if entry.kind == _MACHINE_CODE] or mine
        for entry in entries if kept else ():
            if entry not in kept:
                library[entry.begin : entry.begin + entry.size] = bytes(entry.size)
                blanked += entry.size
    return blanked


def _fat_binaries(library: bytearray) -> Iterator[list[_Entry]]:
    at = library.find(_MAGIC)
    while at >= 0:
        entries, end = _entries(library, at)
        if entries:
            yield entries
        at = library.find(_MAGIC, end)


def _entries(library: bytearray, at: int) -> tuple[list[_Entry], int]:
    """Return the entries of the fat binary at `at`, and where it ends; none where those bytes are none."""
    nothing: tuple[list[_Entry], int] = [], at + len(_MAGIC)
    if at + _HEADER.size > len(library):
        return nothing
    _, version, header, size = _HEADER.unpack_from(library, at)
    place, end, entries = at + header, at + header + size, []
    if version != 1 or header != _HEADER.size or end > len(library):
        return nothing
    while place + _ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, generation = _ENTRY.unpack_from(library, place)
        if kind not in (_PTX, _MACHINE_CODE) or header < _ENTRY.size:
            return nothing
        entries.append(_Entry(kind, generation, place + header, size))
        place += header + size
    return (entries, end) if place == end else nothing


def slim(wheels: Path, into: Path, *, generation: int) -> None:
    """Pack all wheels of a folder anew, small; takes some minutes of each core."""
    into.mkdir(parents=True, exist_ok=True)
    files = sorted(wheels.glob("*.whl"), key=lambda path: -path.stat().st_size)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_pack, files, [into / file.name for file in files], [generation] * len(files)))


def _pack(wheel: Path, target: Path, generation: int) -> None:
    with (
        tempfile.NamedTemporaryFile(dir=target.parent, suffix=".draft", delete=False) as draft,
        zipfile.ZipFile(wheel) as source,
        zipfile.ZipFile(draft, "w", zipfile.ZIP_LZMA) as packed,
    ):
        for member in source.infolist():
            if member.is_dir() or any(part in f"/{member.filename}" for part in _LEFT_OUT):
                continue
            content = bytearray(source.read(member))
            if len(content) >= _LIBRARIES_FROM_BYTES:
                blank(content, generation)
            packed.writestr(member.filename, content)
    os.replace(draft.name, target)


def lend(folder: Path, search: list[Path]) -> list[Path]:
    """Link CUDA 13's libraries under CUDA 12's names, where TensorFlow's own were not brought.

    Returns:
        What LD_LIBRARY_PATH needs: the folder, and those in which something was found.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = [folder]
    for name, real in _LENT.items():
        place = next((directory for directory in search if (directory / real).exists()), None)
        if place is None:
            continue
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(place / real)
        if place not in found:
            found.append(place)
    return found


# TensorFlow for Python 3.12 and what it and this package import, as far as the machine has not got it, or not
# in a version that goes with it. Of CUDA 12 only what the machine's CUDA 13 does not replace (`lend`).
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
