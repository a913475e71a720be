"""Gigabytes brought to a machine in pieces: cut, checked by digest, put together once.

    cut       wheels -> piece-000, piece-001, ... and manifest.json, where there is a network
    Store     takes what a command has brought, until no piece is missing; makes the wheels, then `site`

Every step may be cut off and repeated. Nothing is used whose SHA-256 is not the manifest's.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from scripts.gpu.record import write_atomically

__all__ = ["MANIFEST", "PIECE_MIB", "Manifest", "PieceError", "Store", "cut"]

MANIFEST = "manifest.json"
PIECE_MIB = 60  # a command may bring 64 MiB in all
_CHUNK = 1 << 20


class PieceError(RuntimeError):
    """Pieces are missing or damaged; the message says which, and what to do."""


@dataclass(frozen=True)
class Manifest:
    """What the pieces are and what they make; each entry has "name", "size" and "sha256".

    Attributes:
        pieces: in order; joined they are the files, one behind the other.
        files: in order.
    """

    pieces: tuple[dict[str, Any], ...]
    files: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest.

        Raises:
            PieceError: there is none, it cannot be read, or it names a file outside its folder.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            manifest = cls(tuple(document["pieces"]), tuple(document["files"]))
            names = [entry["name"] for entry in (*manifest.pieces, *manifest.files)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PieceError(
                f"{path} is no manifest of pieces ({error}); bring it with every command"
            ) from error
        if bad := [name for name in names if name != Path(name).name or name in ("", ".", "..")]:
            raise PieceError(f"{path} names {bad[0]!r}, which is not a plain file name; cut the pieces anew")
        return manifest

    @property
    def digest(self) -> str:
        """A digest of all files, which says whether something made of them is theirs."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()


def cut(files: list[Path], into: Path, *, piece_bytes: int = PIECE_MIB << 20) -> Manifest:
    """Cut files, joined in the order of their names, into pieces of at most `piece_bytes`.

    Raises:
        PieceError: there are no files.
    """
    files = sorted(files, key=lambda path: path.name)
    if not files:
        raise PieceError("there is nothing to cut; fetch the wheels first")
    into.mkdir(parents=True, exist_ok=True)
    for stale in into.glob("piece-*"):
        stale.unlink()
    writer = _PieceWriter(into, piece_bytes)
    entries = []
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                writer.write(chunk)
        entries.append({"name": path.name, "size": path.stat().st_size, "sha256": digest.hexdigest()})
    document = {"pieces": writer.close(), "files": entries}
    write_atomically(into / MANIFEST, json.dumps(document, indent=1) + "\n")
    return Manifest.read(into / MANIFEST)


class _PieceWriter:
    def __init__(self, into: Path, piece_bytes: int) -> None:
        self._into, self._piece_bytes = into, piece_bytes
        self._entries: list[dict[str, Any]] = []
        self._buffer = bytearray()

    def write(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= self._piece_bytes:
            self._flush(self._piece_bytes)

    def close(self) -> list[dict[str, Any]]:
        if self._buffer:
            self._flush(len(self._buffer))
        return self._entries

    def _flush(self, count: int) -> None:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        name = f"piece-{len(self._entries):03d}"
        (self._into / name).write_bytes(data)
        self._entries.append({"name": name, "size": count, "sha256": hashlib.sha256(data).hexdigest()})


class Store:
    """Where the pieces come together.

    Args:
        directory: on the machine that needs the files; made if need be.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pieces, self._wheels = directory / "pieces", directory / "wheels"
        self.site = directory / "site"
        directory.mkdir(parents=True, exist_ok=True)

    def bring(self, folder: Path) -> list[str]:
        """Take the pieces of a folder, and say which are still missing.

        Raises:
            PieceError: a piece is damaged, or the manifest is another one's; what is whole has been taken.
        """
        manifest = self._adopt(Manifest.read(folder / MANIFEST))
        if self._is_complete(manifest):
            return []
        self._pieces.mkdir(exist_ok=True)
        damaged = []
        for entry in manifest.pieces:
            source, target = folder / entry["name"], self._pieces / entry["name"]
            if not source.exists() or target.exists():
                continue
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copyfile(source, draft)
            if _digest(draft) == entry["sha256"]:
                os.replace(draft, target)
            else:
                draft.unlink()
                damaged.append(entry["name"])
        if damaged:
            raise PieceError(f"damaged on the way: {', '.join(damaged)}; bring them again")
        return self.missing()

    def missing(self) -> list[str]:
        """Return the names of the pieces that have not come yet.

        Raises:
            PieceError: no manifest has come.
        """
        manifest = Manifest.read(self._directory / MANIFEST)
        if self._is_complete(manifest):
            return []
        return [entry["name"] for entry in manifest.pieces if not (self._pieces / entry["name"]).exists()]

    def assemble(self) -> Path:
        """Put the files together, unpack the wheels, and return the folder for PYTHONPATH; once.

        Raises:
            PieceError: pieces are missing, or what they make is not what was cut.
        """
        manifest = Manifest.read(self._directory / MANIFEST)
        with self._locked():
            if self._is_complete(manifest):
                return self.site
            if missing := self.missing():
                raise PieceError(f"{len(missing)} pieces are missing, from {missing[0]} on; bring them first")
            self._join(manifest)
            self._unpack(manifest)
            write_atomically(self._marker, manifest.digest)
            for leftover in (self._pieces, self._wheels):
                shutil.rmtree(leftover, ignore_errors=True)
        return self.site

    @property
    def _marker(self) -> Path:
        return self._directory / "complete"

    def _is_complete(self, manifest: Manifest) -> bool:
        return self._marker.exists() and self._marker.read_text() == manifest.digest

    def _adopt(self, manifest: Manifest) -> Manifest:
        """Keep the first manifest; another one would mix two sets of pieces."""
        path = self._directory / MANIFEST
        if path.exists():
            if Manifest.read(path) != manifest:
                raise PieceError(
                    f"{self._directory} holds pieces of another manifest; empty it, or name another"
                )
        else:
            document = {"pieces": manifest.pieces, "files": manifest.files}
            write_atomically(path, json.dumps(document, indent=1) + "\n")
        return manifest

    def _join(self, manifest: Manifest) -> None:
        self._wheels.mkdir(exist_ok=True)
        stream = _Joined([self._pieces / entry["name"] for entry in manifest.pieces])
        with contextlib.closing(stream):
            for entry in manifest.files:
                target = self._wheels / entry["name"]
                with target.open("wb") as file:
                    digest = stream.copy(file, entry["size"])
                if digest != entry["sha256"]:
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

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out; the system lets go of the lock when its holder ends."""
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _Joined:
    """Reads pieces one behind the other."""

    def __init__(self, pieces: list[Path]) -> None:
        self._left = list(pieces)
        self._file: IO[bytes] | None = None

    def copy(self, to: IO[bytes], count: int) -> str:
        """Copy the next `count` bytes; return their digest."""
        digest = hashlib.sha256()
        while count > 0:
            data = b"" if self._file is None else self._file.read(min(_CHUNK, count))
            if not data:
                self.close()
                if not self._left:
                    break
                self._file = self._left.pop(0).open("rb")
                continue
            digest.update(data)
            to.write(data)
            count -= len(data)
        return digest.hexdigest()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
