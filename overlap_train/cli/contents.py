"""What of a file can be compared: texts, numbers and arrays by their names, whatever its format adds."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from overlap_train.records import TIMELINE

_LARGEST_TEXT = 100_000_000  # bytes
_PACKED = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ": lzma.decompress}
_OF_NUMPY = ("_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype")


def content_of(path: Path) -> Any:
    """Return what of a file can be compared: its values, or else a digest."""
    if path.is_symlink():
        return f"a link to {os.readlink(path)}"
    if not path.exists():
        return "deleted"
    data = path.read_bytes()
    if TIMELINE.encode() in data:
        return TIMELINE  # what the trainer did when, which a fit by Keras leaves empty
    return _part(data)


def _part(data: bytes) -> Any:
    try:
        content = _values(data)
    except Exception:  # of a format that its beginning does not tell, or damaged
        content = None
    return content if content is not None else f"digest {hashlib.sha256(data).hexdigest()}"


def _values(data: bytes) -> Any:
    for magic, unpacked in _PACKED.items():
        if data.startswith(magic):
            return _values(unpacked(data))
    if data.startswith(b"\x93NUMPY"):
        return _array(data)
    if data.startswith(b"\x89HDF"):
        return _datasets(data)
    if b"brain.Event:" in data[:64]:
        return _events(data)
    if data[:1] == b"\x80" and data[-1:] == b".":
        return _tree(_Reader(io.BytesIO(data)).load())
    if data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            members = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
            return {name: _part(file.read()) for name, file in members.items() if file is not None}
    if zipfile.is_zipfile(io.BytesIO(data)):  # such as a model of Keras's
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            dated = "metadata.json" if "config.json" in archive.namelist() else None
            return {name: _part(archive.read(name)) for name in archive.namelist() if name != dated}
    return data.decode() if len(data) <= _LARGEST_TEXT else None


def _array(data: bytes) -> Any:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError:  # of objects, which are pickled behind the header: a line that begins with its size
        return _tree(_Reader(io.BytesIO(data[data.index(b"\n", 12) + 1 :])).load())


def _events(data: bytes) -> dict[str, Any]:
    """Return what a log of TensorBoard says at which step."""
    import tensorflow as tf

    values: dict[str, Any] = {}
    at = 0
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = tf.compat.v1.Event.FromString(data[at + 12 : at + 12 + length])
        at += length + 16
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            said = tf.make_ndarray(value.tensor) if kind == "tensor" else getattr(value, kind)
            said = said if isinstance(said, (float, np.ndarray)) else str(said)
            values.setdefault(f"{value.tag} at step {event.step}", []).append(_tree(said))
    return values


def _datasets(data: bytes) -> dict[str, Any]:
    """Return the arrays and the attributes of an HDF5 file by their paths."""
    import h5py  # type: ignore[import-untyped]

    values: dict[str, Any] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            values[name] = _tree(item[()])
        values.update({f"{name} attribute {key}".strip(): _tree(value) for key, value in item.attrs.items()})

    with h5py.File(io.BytesIO(data)) as file:
        note("", file)
        file.visititems(note)
    return values


class _Object(list[Any]):
    """Stands in a pickle for an object of any class, none of whose code is run, with what it is made of."""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Object:
        self = super().__new__(cls)
        self.extend([*args, *kwargs.items()])
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what its class takes."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.append([key, value])

    __setstate__ = list.append


class _Reader(pickle.Unpickler):
    """Reads plain values and arrays; calls nothing else that a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in _OF_NUMPY:
            return super().find_class(module, name)
        known = {("collections", "OrderedDict"): OrderedDict, ("_codecs", "encode"): str.encode}
        return known.get((module, name)) or type(name, (_Object,), {})

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _tree(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return a value as dicts, lists, texts, numbers and arrays."""
    if id(value) in above:
        return "itself"
    above = (*above, id(value))
    if isinstance(value, _Object):
        return {type(value).__name__: [_tree(part, above) for part in value]}
    if isinstance(value, Mapping):
        return {str(_tree(key, above)): _tree(part, above) for key, part in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(str(_tree(part, above)) for part in value)
    if isinstance(value, (list, tuple)):
        return [_tree(part, above) for part in value]
    if isinstance(value, (np.ndarray, np.void)) and value.dtype.names:
        return {name: _tree(value[name], above) for name in value.dtype.names}
    if isinstance(value, (np.ndarray, np.generic)):
        whole = value.ndim and value.dtype.kind in "biufcmM"
        return value if whole else _tree(value.tolist(), above)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin-1")
    if isinstance(value, complex):
        return np.asarray(value)
    plain = isinstance(value, (str, int, float, type(None)))
    return value if plain else value.__name__ if isinstance(value, type) else str(value)
