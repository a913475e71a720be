"""Packs wheels small: one generation's machine code, without headers and tests, by LZMA.

    python -m scripts.gpu.slim WHEELS SMALL [--generation 90]

What is for other cards becomes zeros, which pack well. A fat binary (fatbinary_section.h of CUDA, and what
cuobjdump shows) is a header and entries, each with its kind (1 PTX, 2 machine code), the sizes of its header
and its payload, and the generation it is for.
"""

from __future__ import annotations

import argparse
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

_MAGIC = struct.pack("<I", 0xBA55ED50)
_HEADER, _ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")
_PTX, _MACHINE_CODE = 1, 2
_LEFT_OUT = ("tensorflow/include/", "/tests/")
_LIBRARIES_FROM_BYTES = 1 << 20


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("small", type=Path)
    parser.add_argument("--generation", type=int, default=90, help="of the card: 75, 80, 90 (90)")
    arguments = parser.parse_args()
    slim(arguments.wheels, arguments.small, generation=arguments.generation)
