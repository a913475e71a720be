"""The file that holds one checkpoint: a checksummed manifest, then the bytes of the arrays.

    6 bytes   "OTCKPT"
    2 bytes   version of this layout
    8 bytes   size of the manifest
    32 bytes  SHA-256 of the manifest
    manifest  JSON: epoch, step, meta, fingerprint, and for each array its name, dtype, shape and SHA-256
    data      the arrays' elements in C order, one array after another

Numbers are little-endian. One file and not a directory, so that one rename makes it visible and nothing in
it can be lost alone; not a zip, because a zip has bytes that no checksum covers. Here every byte is covered,
and the size of the file follows from the manifest. There is no pickle: to read it runs no code. JSON is that
of Python, which writes NaN and the infinities by name and integers with all their digits.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes  # noqa: F401  NumPy finds bfloat16 and its like by name once this is imported
import numpy as np
import numpy.typing as npt

from overlap_train.checkpoint.state import CheckpointState
from overlap_train.errors import CheckpointCorruptError, CheckpointError

__all__ = ["encode", "read"]

_MAGIC = b"OTCKPT"
_VERSION = 1
_PREAMBLE = struct.Struct("<6sHQ32s")

Bytes = bytes | memoryview


def encode(state: CheckpointState) -> list[Bytes]:
    """Returns the pieces of the file, in order; those of arrays share the arrays' memory where they can.

    Raises:
        TypeError: a part of the state is of a type that cannot be stored; the message names it.
        ValueError: a number is out of range.
    """
    data, described = [], []
    for name, array in state.arrays.items():
        _require_text("the names of arrays", name)
        dtype = _dtype_name(name, array)
        content = np.asarray(array, order="C").reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(content).hexdigest()
        described.append({"name": name, "dtype": dtype, "shape": list(array.shape), "sha256": digest})
        data.append(content)
    for part, text in state.fingerprint.items():
        _require_text("the parts of the fingerprint", part)
        _require_text(f"fingerprint[{part!r}]", text)
    _require_json(dict(state.meta), "meta")
    manifest = json.dumps(
        {
            "epoch": _count("epoch", state.epoch),
            "step": _count("step", state.step),
            "meta": dict(state.meta),
            "fingerprint": dict(state.fingerprint),
            "arrays": described,
        }
    ).encode("ascii")
    preamble = _PREAMBLE.pack(_MAGIC, _VERSION, len(manifest), hashlib.sha256(manifest).digest())
    return [preamble, manifest, *data]


def read(path: str | os.PathLike[str]) -> CheckpointState:
    """Reads a checkpoint and verifies every byte of it.

    Returns:
        The state, with arrays of their own memory.

    Raises:
        CheckpointCorruptError: the file is damaged, of another version or no checkpoint.
        CheckpointError: there is no such file.
    """
    try:
        with open(path, "rb") as file:
            return _read(file)
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no checkpoint at {os.fspath(path)}.") from error
    except (_Damage, OSError) as error:
        raise CheckpointCorruptError(
            f"The checkpoint {os.fspath(path)} cannot be used: {error}. Take an older one of the directory "
            f"{Path(path).parent}, or give another directory to start afresh."
        ) from error


class _Damage(Exception):
    """What is wrong with a file, in words."""


def _read(file: BinaryIO) -> CheckpointState:
    file_bytes = os.fstat(file.fileno()).st_size
    manifest = _read_manifest(file, file_bytes)
    try:
        described = [(entry, *_geometry(entry)) for entry in manifest["arrays"]]
        expected = file.tell() + sum(size for _, _, size in described)
        if expected != file_bytes:
            raise _Damage(f"it has {file_bytes} bytes where {expected} belong, so it is truncated or changed")
        return CheckpointState(
            epoch=manifest["epoch"],
            step=manifest["step"],
            arrays={entry["name"]: _read_array(file, entry, dtype, size) for entry, dtype, size in described},
            meta=manifest["meta"],
            fingerprint=manifest["fingerprint"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _Damage(f"its manifest makes no sense ({error!r})") from error


def _read_manifest(file: BinaryIO, file_bytes: int) -> dict[str, Any]:
    head = file.read(_PREAMBLE.size)
    if len(head) < _PREAMBLE.size:
        raise _Damage(f"it ends after {len(head)} bytes, so it is truncated")
    magic, version, size, digest = _PREAMBLE.unpack(head)
    if magic != _MAGIC:
        raise _Damage("it does not begin as a checkpoint does")
    if version != _VERSION:
        raise _Damage(f"it has version {version} of the layout, and this release reads version {_VERSION}")
    if size > file_bytes - _PREAMBLE.size:
        raise _Damage("it ends inside its manifest, so it is truncated or changed")
    text = file.read(size)
    if hashlib.sha256(text).digest() != digest:
        raise _Damage("the checksum of its manifest differs")
    manifest: dict[str, Any] = json.loads(text)
    return manifest


def _geometry(entry: Mapping[str, Any]) -> tuple[np.dtype[Any], int]:
    dtype = np.dtype(entry["dtype"])
    return dtype, math.prod(entry["shape"]) * dtype.itemsize


def _read_array(
    file: BinaryIO, entry: Mapping[str, Any], dtype: np.dtype[Any], size_bytes: int
) -> npt.NDArray[Any]:
    content = np.empty(size_bytes, np.uint8)
    if file.readinto(content.data) != size_bytes:  # type: ignore[attr-defined]
        raise _Damage(f"it ends inside the array {entry['name']!r}")
    if hashlib.sha256(content.data).hexdigest() != entry["sha256"]:
        raise _Damage(f"the checksum of the array {entry['name']!r} differs")
    return content.view(dtype).reshape(entry["shape"])


def _dtype_name(name: str, array: object) -> str:
    """Returns what `numpy.dtype` makes the array's dtype of again."""
    if not isinstance(array, (np.ndarray, np.generic)):
        raise TypeError(f"arrays[{name!r}] must be a NumPy array; got {type(array).__name__}")
    dtype = array.dtype
    # A dtype of ml_dtypes calls itself a void in `str`; only its name tells it apart.
    text: str = dtype.name if dtype.kind == "V" or dtype.isbuiltin == 2 else dtype.str
    try:
        known = np.dtype(text) == dtype and dtype.kind not in "OT" and dtype.itemsize > 0
    except TypeError:
        known = False
    if not known or dtype.fields is not None:
        raise TypeError(f"arrays[{name!r}] has dtype {dtype}, which cannot be stored; store plain numbers")
    return text


def _count(name: str, value: Any) -> int:
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0; got {number}")
    return number


def _require_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be of type str; got {value!r} of type {type(value).__name__}")


def _require_json(value: object, where: str) -> None:
    """Refuses what JSON would change or lose: tuples, keys that are not text, any other object."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return
    if not isinstance(value, (list, dict)):
        raise TypeError(
            f"{where} is of type {type(value).__name__}; use None, bool, int, float, str, list or dict, and "
            "put arrays into `arrays`"
        )
    for key, item in _items(value, where):
        _require_json(item, f"{where}[{key!r}]")


def _items(value: list[Any] | dict[Any, Any], where: str) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, list):
        yield from enumerate(value)
        return
    for key, item in value.items():
        _require_text(f"the keys of {where}", key)
        yield key, item
