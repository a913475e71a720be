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

A checksum says that a file is as it was written, not who wrote it. So the manifest is checked like any other
input: field by field, and every size against the file and this machine before memory is taken for it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import reprlib
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from overlap_train._support.arguments import is_count, plain_text
from overlap_train._support.files import open_regular, what_is_no_file
from overlap_train.errors import CheckpointCorruptError, CheckpointError

_LONGEST_SHOWN = 160


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


def shortened(value: object) -> str:
    """Return a value as a message shows it, whatever a file holds: text of bounded length."""
    if isinstance(value, str):
        return repr(_cut(plain_text(value)))
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an integer of {value.bit_length()} bits"
    try:
        return _cut(reprlib.repr(value))
    except ValueError:  # of an integer in it that has more digits than Python writes out
        return f"a {type(value).__name__} that cannot be printed"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


# What file systems without a sync answer: those of networks, of user space and of sealed images.
_NO_SYNC_HERE = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS)
# A directory may be searched and written without being read, and some systems sync none.
_NO_SYNC_OF_DIRECTORIES = (*_NO_SYNC_HERE, errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR)


def sync(descriptor: int) -> None:
    """Make a file's content durable, if its file system can."""
    _sync(descriptor, _NO_SYNC_HERE)


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


_ADVICE: Mapping[int | None, str] = {
    errno.EROFS: "Give a directory on a file system that can be written",
    errno.EFBIG: "Raise the limit of a file's size (ulimit -f), or give a directory on another disk",
    errno.ENAMETOOLONG: "Give a shorter path",
}


def explain(error: OSError, path: str | os.PathLike[str], *, directory: bool = False) -> str:
    """Return what is wrong with a path and what to do about it, after using it raised `error`.

    `directory` says that a directory belongs there.
    """
    reason = error.strerror or str(error)
    advice = _obstacle(error, path, directory) or _ADVICE.get(error.errno)
    if advice is None and error.errno in (errno.EACCES, errno.EPERM):
        advice = f"Let user {os.geteuid()} read and write there, or give another directory"
    if advice is not None:
        return f"{reason}. {advice}"
    return f"{reason}. Give another directory" if directory else reason


def _obstacle(error: OSError, path: str | os.PathLike[str], directory: bool) -> str | None:
    """Return what is in the way: something that is no file where one belongs, or no directory."""
    in_the_way = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY)
    if error.errno not in (*in_the_way, *([errno.ENOENT] if directory else [])):
        return None
    for place in () if directory or error.errno == errno.ENOTDIR else (error.filename2, error.filename, path):
        kind = None if place is None else what_is_no_file(place)
        if kind is not None:
            return f"{os.fspath(place)} is {kind}, where a file belongs; move it away"
    for place in (Path(path), *Path(path).parents):
        if os.path.lexists(place) and not os.path.isdir(place):
            return f"{place} is no directory; move it away, or give another directory"
    return None


_MAGIC = b"OTCKPT"
_VERSION = 3
_PREAMBLE = struct.Struct("<6sHQ32s")
_LARGEST_MANIFEST_BYTES = 1 << 26  # parsed, it takes some twenty times as much
_MOST_DIMENSIONS = 64  # of NumPy

# What `_dtype_name` returns, except for the types of ml_dtypes. NumPy reads much more than is ever written.
_DTYPE = re.compile(
    r"[<>|](b1|[iu][1248]|f(2|4|8|12|16)|c(8|16|24|32)|[SU][0-9]{1,9}|[mM]8(\[[0-9A-Za-z]{1,24}\])?)"
)

# The memory limit of this process's control group, as containers see it: of version 2 and of version 1.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

# Errors of the process or its rights: the file may be sound.
_NOT_DAMAGE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)

Bytes = bytes | memoryview
_Readable = io.BufferedReader | io.BytesIO


def encode(state: CheckpointState) -> list[Bytes]:
    """Return the pieces of the file, in order; those of arrays share the arrays' memory where they can.

    A part of a type that cannot be stored is a TypeError that names it, too large a manifest a ValueError.
    """
    data, entries = [], []
    for name, array in state.arrays.items():
        _require_text("the names of arrays", name)
        dtype = _dtype_name(name, array)
        content = np.asarray(array, order="C").reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(content).hexdigest()
        entries.append({"name": name, "dtype": dtype, "shape": list(array.shape), "sha256": digest})
        data.append(content)
    for part, text in state.fingerprint.items():
        _require_text("the parts of the fingerprint", part)
        _require_text(f"fingerprint[{part!r}]", text)
    meta = dict(state.meta)
    _require_json(meta, "meta")
    manifest = json.dumps(
        {
            "epoch": state.epoch,
            "step": state.step,
            "meta": meta,
            "fingerprint": dict(state.fingerprint),
            "arrays": entries,
        }
    ).encode("ascii")
    if len(manifest) > _LARGEST_MANIFEST_BYTES:
        raise ValueError(
            f"names and meta take {len(manifest)} bytes, and {_LARGEST_MANIFEST_BYTES} is the most that a "
            "checkpoint can hold; put large values into arrays"
        )
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
            raise CheckpointError(
                f"The checkpoint {os.fspath(path)} cannot be read: {explain(error, path)}."
            ) from error
        raise CheckpointCorruptError(
            f"The checkpoint {os.fspath(path)} cannot be used: {error}. Take an older one of the directory "
            f"{Path(path).parent}, or give another directory to start afresh."
        ) from error


def decode(content: bytes) -> CheckpointState:
    """Return what `encode` was given, from the bytes of its pieces."""
    return _read(io.BytesIO(content), len(content))


class _Damage(Exception):
    """A file is damaged; the text says how."""


class _ArrayEntry(NamedTuple):
    """The manifest's entry of one array."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    sha256: str

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _read(file: _Readable, file_bytes: int) -> CheckpointState:
    manifest = _read_manifest(file, file_bytes)
    entries = [_array_entry(entry) for entry in _field(manifest, "arrays", list)]
    if len({entry.name for entry in entries}) < len(entries):
        raise _Damage("its manifest names an array twice")
    arrays_bytes = sum(entry.size_bytes for entry in entries)
    if file.tell() + arrays_bytes != file_bytes:
        expected = shortened(file.tell() + arrays_bytes)
        raise _Damage(f"it has {file_bytes} bytes where {expected} belong, so it is truncated or changed")
    if arrays_bytes > _machine_bytes():
        raise _Damage(f"its arrays have {arrays_bytes} bytes, more than the memory of this machine")
    fingerprint = _field(manifest, "fingerprint", dict)
    if not all(isinstance(text, str) for text in fingerprint.values()):
        raise _Damage("its manifest has a fingerprint that is no text")
    return CheckpointState(
        epoch=_stored_count(manifest, "epoch"),
        step=_stored_count(manifest, "step"),
        arrays={entry.name: _read_array(file, entry) for entry in entries},
        meta=_field(manifest, "meta", dict),
        fingerprint=fingerprint,
    )


def _read_manifest(file: _Readable, file_bytes: int) -> dict[str, Any]:
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
    if size > _LARGEST_MANIFEST_BYTES:
        raise _Damage(
            f"its manifest has {size} bytes, and {_LARGEST_MANIFEST_BYTES} is the most that is read"
        )
    text = file.read(size)
    if hashlib.sha256(text).digest() != digest:
        raise _Damage("the checksum of its manifest differs")
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Damage(f"its manifest is invalid ({shortened(str(error))})") from error
    if not isinstance(manifest, dict):
        raise _Damage(f"its manifest is invalid (a {type(manifest).__name__} and no dict)")
    return manifest


def _field(entry: Mapping[str, Any], name: str, kind: type) -> Any:
    value = entry.get(name)
    if not isinstance(value, kind):
        fault = f"of type {type(value).__name__} and not {kind.__name__}" if name in entry else "missing"
        raise _Damage(f"its manifest is invalid ({name!r} is {fault})")
    return value


def _stored_count(entry: Mapping[str, Any], name: str) -> int:
    if not is_count(entry.get(name)):
        raise _Damage(f"its manifest is invalid ({name!r} is {shortened(entry.get(name))})")
    return int(entry[name])


def _array_entry(entry: object) -> _ArrayEntry:
    if not isinstance(entry, dict):
        raise _Damage(f"its manifest is invalid (an array is described by {shortened(entry)})")
    name, text, shape = _field(entry, "name", str), _field(entry, "dtype", str), _field(entry, "shape", list)
    dtype = _dtype(text)
    if dtype is None:
        raise _Damage(f"the array {shortened(name)} has dtype {shortened(text)}, which is never written")
    if len(shape) > _MOST_DIMENSIONS or not all(map(is_count, shape)):
        raise _Damage(f"the array {shortened(name)} has shape {shortened(shape)}")
    return _ArrayEntry(name, dtype, tuple(shape), _field(entry, "sha256", str))


def _dtype(text: str) -> np.dtype[Any] | None:
    """Return the dtype of a text that `_dtype_name` has returned, or None for any other text."""
    if not (_DTYPE.fullmatch(text) or isinstance(getattr(ml_dtypes, text, None), type)):
        return None
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return dtype if dtype.itemsize > 0 and dtype.kind != "O" else None


def _read_array(file: _Readable, array: _ArrayEntry) -> npt.NDArray[Any]:
    content = np.empty(array.size_bytes, np.uint8)
    if file.readinto(content.data) != array.size_bytes:
        raise _Damage(f"it ends inside the array {shortened(array.name)}")
    if hashlib.sha256(content.data).hexdigest() != array.sha256:
        raise _Damage(f"the checksum of the array {shortened(array.name)} differs")
    if array.dtype.kind == "U" and not _is_text(content, array.dtype):
        raise _Damage(f"the array {shortened(array.name)} holds what is no text")
    try:
        return content.view(array.dtype).reshape(array.shape)
    except ValueError as error:  # an empty one can have sides whose product is no size
        raise _Damage(f"the array {shortened(array.name)} has shape {shortened(array.shape)}") from error


def _is_text(content: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether bytes are characters of a dtype, each of four bytes; NumPy takes any, and Python does not."""
    characters = content.view(np.dtype(np.uint32).newbyteorder(dtype.byteorder))
    return not characters.size or int(characters.max()) <= sys.maxunicode


def _machine_bytes() -> int:
    """Return the memory of this machine, or the part of it that this process may have."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max", or no such file
            sizes.append(int(Path(path).read_text(encoding="ascii")))
    return min(sizes)


def _dtype_name(name: str, array: object) -> str:
    """Return a text from which `numpy.dtype` makes the array's dtype again."""
    if not isinstance(array, (np.ndarray, np.generic)):
        raise TypeError(f"arrays[{name!r}] must be a NumPy array; got {type(array).__name__}")
    dtype = array.dtype
    # A dtype of ml_dtypes calls itself a void in `str`; only its name tells it apart.
    text: str = dtype.name if dtype.kind == "V" or dtype.isbuiltin == 2 else dtype.str
    try:
        is_storable = np.dtype(text) == dtype and dtype.kind not in "OT" and dtype.itemsize > 0
    except TypeError:
        is_storable = False
    if not is_storable or dtype.fields is not None:
        raise TypeError(f"arrays[{name!r}] has dtype {dtype}, which cannot be stored; store plain numbers")
    return text


def _require_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be of type str; got {value!r} of type {type(value).__name__}")


def _require_json(value: object, where: str) -> None:
    """Refuse what JSON would change or lose: tuples, keys that are not text, any other object."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return
    if not isinstance(value, (list, dict)):
        raise TypeError(
            f"{where} is of type {type(value).__name__}; use None, bool, int, float, str, list or dict, and "
            "put arrays into `arrays`"
        )
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict):
            _require_text(f"the keys of {where}", key)
        _require_json(item, f"{where}[{key!r}]")
