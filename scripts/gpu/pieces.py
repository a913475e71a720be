"""Gigabytes brought to a machine in pieces: cut, checked by digest, put together once.

    cut       wheels -> piece-000, piece-001, ... and manifest.json, where there is a network
    Store     takes what a command has brought, until no piece is missing; then unpacks the wheels into `site`

The pieces, joined, are a tar archive of the wheels. Every step may be cut off and repeated, and no piece is
taken whose SHA-256 is not the manifest's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

from scripts.gpu.record import write_atomically

__all__ = ["MANIFEST", "PIECE_MIB", "PieceError", "Store", "cut", "read_manifest"]

MANIFEST = "manifest.json"
PIECE_MIB = 60  # a command may bring 64 MiB in all


class PieceError(RuntimeError):
    """Pieces are missing or damaged; the message says which, and what to do."""


def cut(files: list[Path], into: Path, *, piece_bytes: int = PIECE_MIB << 20) -> dict[str, str]:
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
