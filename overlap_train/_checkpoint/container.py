"""The file that holds one checkpoint: a checksummed manifest, then the bytes of the arrays.

    6 bytes   "OTCKPT"
    2 bytes   version of this layout
    8 bytes   size of the manifest
    32 bytes  SHA-256 of the manifest
    manifest  JSON: epoch, step, meta, fingerprint, and for each array its name, dtype, shape and SHA-256
    data      the arrays' elements in C order, one array after another

Numbers are little-endian. One file and not a directory, so that one rename makes it visible and nothing in it
can be lost alone; not a zip, because a zip has bytes that no checksum covers. Here every byte is covered, and
the size of the file follows from the manifest. There is no pickle: to read it runs no code. JSON is that of
Python, which writes NaN and the infinities by name and integers with all their digits.

A checksum says that a file is as it was written, not who wrote it: whoever may write the file decides what a
training goes on with. No content of it runs code, or takes more memory than the file is large.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # whose types NumPy then knows by their names
import numpy as np
import numpy.typing as npt

from overlap_train._support.arguments import short_repr
from overlap_train._support.files import Replacing, open_regular
from overlap_train.errors import CheckpointCorruptError, CheckpointError

Bytes = bytes | memoryview
_Readable = io.BufferedReader | io.BytesIO
_LARGEST_WRITE_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class CheckpointState:
    """Everything that decides how a training goes on."""

    epoch: int  # the next one, counted from 0
    step: int  # training steps made so far
    # Of any shape and dtype without Python objects or fields; those of ml_dtypes, such as bfloat16, included.
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    # Of JSON, with integers of any size, NaN and infinities.
    meta: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)


# What file systems without a sync answer: those of networks, of user space and of sealed images.
_NO_SYNC_HERE = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS)
# A directory may be searched and written without being read, and some systems sync none.
_NO_SYNC_OF_DIRECTORIES = (*_NO_SYNC_HERE, errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR)


def write(path: Path, pieces: Sequence[Bytes]) -> None:
    """Write a file as a whole and make it durable, or raise OSError and leave what was there."""
    with Replacing(path) as unfinished:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(descriptor, rest[:_LARGEST_WRITE_BYTES]) :]
            _sync(descriptor, _NO_SYNC_HERE)
        finally:
            os.close(descriptor)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, which syncing a file does not."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_DIRECTORIES:
            raise
        return
    try:
        _sync(descriptor, _NO_SYNC_OF_DIRECTORIES)
    finally:
        os.close(descriptor)


def _sync(descriptor: int, tolerated: tuple[int, ...]) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in tolerated:
            raise


_MAGIC = b"OTCKPT"
_VERSION = 5
_PREAMBLE = struct.Struct("<6sHQ32s")

# Errors of the process or its rights: the file may be sound.
_NOT_DAMAGE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def encode(state: CheckpointState) -> list[Bytes]:
    """Return the pieces of the file, in order; those of arrays share the arrays' memory where they can.

    A part of a type that cannot be stored is a TypeError.
    """
    data, entries = [], []
    for name, array in state.arrays.items():
        dtype = _dtype_text(array.dtype)
        content = np.asarray(array, order="C").reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(content).hexdigest()
        entries.append({"name": name, "dtype": dtype, "shape": list(array.shape), "sha256": digest})
        data.append(content)
    parts = {"meta": dict(state.meta), "fingerprint": dict(state.fingerprint), "arrays": entries}
    manifest = json.dumps({"epoch": state.epoch, "step": state.step, **parts}).encode("ascii")
    preamble = _PREAMBLE.pack(_MAGIC, _VERSION, len(manifest), hashlib.sha256(manifest).digest())
    return [preamble, manifest, *data]


def read(path: str | os.PathLike[str]) -> CheckpointState:
    """Read a checkpoint and verify every byte of it; its arrays have memory of their own.

    CheckpointCorruptError means that the file is damaged, of another version, no checkpoint or no regular
    file; CheckpointError that there is none, or that this process may not read it.
    """
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no checkpoint at {os.fspath(path)}.") from error
    except (_Damage, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in _NOT_DAMAGE:
            raise CheckpointError(f"The checkpoint {os.fspath(path)} cannot be read: {error}.") from error
        raise CheckpointCorruptError(
            f"The checkpoint {os.fspath(path)} cannot be used: {error}. Take an older one of the directory "
            f"{Path(path).parent}, or give another directory to start afresh."
        ) from error


def decode(content: bytes) -> CheckpointState:
    """Return what `encode` was given, from the bytes of its pieces."""
    return _read(io.BytesIO(content), len(content))


class _Damage(Exception):
    """A file is damaged; the text says how."""


def _read(file: _Readable, file_bytes: int) -> CheckpointState:
    manifest = _read_manifest(file, file_bytes)
    shapes = {each["name"]: (each["shape"], np.dtype(each["dtype"])) for each in manifest["arrays"]}
    digests = [each["sha256"] for each in manifest["arrays"]]
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values()]
    expected = file.tell() + sum(sizes)
    if expected != file_bytes:
        raise _Damage(f"it has {file_bytes} bytes and not {expected}, so it is truncated or changed")
    arrays = {}
    for (name, (shape, dtype)), size, digest in zip(shapes.items(), sizes, digests, strict=True):
        content = np.empty(size, np.uint8)
        if file.readinto(content.data) != size or hashlib.sha256(content.data).hexdigest() != digest:
            raise _Damage(f"the checksum of the array {short_repr(name)} differs")
        arrays[name] = content.view(dtype).reshape(shape)
    return CheckpointState(**manifest | {"arrays": arrays})


def _read_manifest(file: _Readable, file_bytes: int) -> dict[str, Any]:
    head = file.read(_PREAMBLE.size)
    if len(head) < _PREAMBLE.size:
        raise _Damage(f"it ends after {len(head)} bytes, so it is truncated")
    magic, version, size, digest = _PREAMBLE.unpack(head)
    if magic != _MAGIC:
        raise _Damage("it does not begin as a checkpoint does")
    if version != _VERSION:
        raise _Damage(f"it has version {version} of the layout, and this release reads version {_VERSION}")
    if size > file_bytes:
        raise _Damage("it ends inside its manifest, so it is truncated or changed")
    text = file.read(size)
    if hashlib.sha256(text).digest() != digest:
        raise _Damage("the checksum of its manifest differs")
    return dict(json.loads(text))


def _dtype_text(dtype: np.dtype[Any]) -> str:
    """Return a text from which `numpy.dtype` makes a dtype again; TypeError for one that is not stored."""
    # A dtype of ml_dtypes calls itself a void in `str`; only its name tells it apart.
    text: str = dtype.name if dtype.kind == "V" or dtype.isbuiltin == 2 else dtype.str
    try:
        is_storable = np.dtype(text) == dtype and dtype.kind not in "OT" and dtype.itemsize > 0
    except TypeError:
        is_storable = False
    if not is_storable or dtype.fields is not None:
        raise TypeError(f"an array has dtype {dtype}, which cannot be stored; store plain numbers")
    return text
