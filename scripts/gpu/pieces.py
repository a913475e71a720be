"""Gigabytes brought to a machine in pieces: cut, checked by digest, put together once.

    cut       wheels -> piece-000, piece-001, ... and manifest.json, where there is a network
    Store     takes what a command has brought, until no piece is missing; makes the wheels, then `site`

Every step may be cut off and repeated. Nothing is used whose SHA-256 is not the manifest's.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.gpu.record import write_atomically

__all__ = ["MANIFEST", "PIECE_MIB", "Manifest", "PieceError", "Store", "cut"]

MANIFEST = "manifest.json"
PIECE_MIB = 60  # a command may bring 64 MiB in all
_CHUNK = 1 << 20


class PieceError(RuntimeError):
    """Pieces are missing or damaged; the message says which, and what to do."""


@dataclass(frozen=True)
class Manifest:
    """What the pieces are and what they make, in order; each entry has "name", "size" and "sha256"."""

    pieces: list[dict[str, Any]]  # joined they are the files, one behind the other
    files: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            manifest = cls(document["pieces"], document["files"])
            names = [entry["name"] for entry in (*manifest.pieces, *manifest.files)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PieceError(
                f"{path} is no manifest of pieces ({error}); bring it with every command"
            ) from error
        if bad := [name for name in names if name != Path(name).name or name in ("", ".", "..")]:
            raise PieceError(f"{path} names {bad[0]!r}, which is not a plain file name; cut the pieces anew")
        return manifest

    def write(self, path: Path) -> None:
        """Write the manifest."""
        write_atomically(path, json.dumps({"pieces": self.pieces, "files": self.files}, indent=1) + "\n")


def cut(files: list[Path], into: Path, *, piece_bytes: int = PIECE_MIB << 20) -> Manifest:
    """Cut files, joined in the order of their names, into pieces of at most `piece_bytes`."""
    files = sorted(files, key=lambda path: path.name)
    if not files:
        raise PieceError("there is nothing to cut; fetch the wheels first")
    into.mkdir(parents=True, exist_ok=True)
    for stale in into.glob("piece-*"):
        stale.unlink()
    pieces = []
    for number, data in enumerate(_parts(files, piece_bytes)):
        path = into / f"piece-{number:03d}"
        path.write_bytes(data)
        pieces.append(_entry(path))
    manifest = Manifest(pieces, [_entry(path) for path in files])
    manifest.write(into / MANIFEST)
    return manifest


class Store:
    """Where the pieces come together, on the machine that needs the files."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._manifest = directory, directory / MANIFEST
        self._pieces, self._wheels, self.site = (directory / n for n in ("pieces", "wheels", "site"))
        self._complete = directory / "complete"  # holds the manifest of what `site` was made of

    def bring(self, folder: Path) -> list[str]:
        """Take the pieces of a folder, and say which are still missing; what is damaged is refused."""
        manifest = Manifest.read(folder / MANIFEST)
        if not self._manifest.exists():
            manifest.write(self._manifest)
        elif Manifest.read(self._manifest) != manifest:
            raise PieceError(f"{self._directory} holds pieces of another manifest; empty it, or name another")
        if not self.missing():
            return []
        self._pieces.mkdir(exist_ok=True)
        damaged = []
        for entry in manifest.pieces:
            source, target = folder / entry["name"], self._pieces / entry["name"]
            if not source.exists() or target.exists():
                continue
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copyfile(source, draft)
            if _entry(draft)["sha256"] == entry["sha256"]:
                os.replace(draft, target)
            else:
                draft.unlink()
                damaged.append(entry["name"])
        if damaged:
            raise PieceError(f"damaged on the way: {', '.join(damaged)}; bring them again")
        return self.missing()

    def missing(self) -> list[str]:
        """Return the names of the pieces that have not come yet."""
        pieces = Manifest.read(self._manifest).pieces
        if self._is_complete():
            return []
        return [entry["name"] for entry in pieces if not (self._pieces / entry["name"]).exists()]

    def assemble(self) -> Path:
        """Put the files together, unpack the wheels, and return the folder for PYTHONPATH; once."""
        manifest = Manifest.read(self._manifest)
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # which the system lets go of when its holder ends
            if self._is_complete():
                return self.site
            if missing := self.missing():
                raise PieceError(f"{len(missing)} pieces are missing, from {missing[0]} on; bring them first")
            self._join(manifest)
            self._unpack(manifest)
            write_atomically(self._complete, self._manifest.read_text())
            for leftover in (self._pieces, self._wheels):
                shutil.rmtree(leftover, ignore_errors=True)
        return self.site

    def _is_complete(self) -> bool:
        return self._complete.exists() and self._complete.read_text() == self._manifest.read_text()

    def _join(self, manifest: Manifest) -> None:
        self._wheels.mkdir(exist_ok=True)
        left = _Bytes(self._pieces / entry["name"] for entry in manifest.pieces)
        for entry in manifest.files:
            target = self._wheels / entry["name"]
            with target.open("wb") as file:
                for data in left.take(entry["size"], _CHUNK):
                    file.write(data)
            if _entry(target) != entry:
                raise PieceError(
                    f"{entry['name']} is not what was cut; empty {self._directory} and begin anew"
                )

    def _unpack(self, manifest: Manifest) -> None:
        draft = self.site.with_name("site.draft")
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(self.site, ignore_errors=True)
        for entry in manifest.files:
            with zipfile.ZipFile(self._wheels / entry["name"]) as wheel:
                wheel.extractall(draft)  # which keeps to `draft`, whatever the names in it
        os.replace(draft, self.site)


class _Bytes:
    """The bytes of files, one behind the other."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._chunks = itertools.chain.from_iterable(map(_chunks, paths))
        self._left = b""

    def take(self, count: int, at_once: int) -> Iterator[bytes]:
        """Yield the next `count` bytes, or all that are left, some at once."""
        while count > 0:
            self._left = self._left or next(self._chunks, b"")
            data = self._left[: min(count, at_once)]
            if not data:
                return
            self._left = self._left[len(data) :]
            count -= len(data)
            yield data


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(_CHUNK), b"")


def _parts(files: list[Path], size: int) -> Iterator[bytes]:
    stream = _Bytes(files)
    while data := b"".join(stream.take(size, _CHUNK)):
        yield data


def _entry(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    for data in _chunks(path):
        digest.update(data)
    return {"name": path.name, "size": path.stat().st_size, "sha256": digest.hexdigest()}
