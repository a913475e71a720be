"""States of a training, for the tests of this folder."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np

from overlap_train._checkpoint.container import CheckpointState

_PREAMBLE = struct.Struct("<6sHQ32s")


def sealed(text: bytes, data: bytes = b"", *, size: int | None = None) -> bytes:
    """Returns a file around a manifest, with the checksum that belongs to it."""
    size = len(text) if size is None else size
    return _PREAMBLE.pack(b"OTCKPT", 4, size, hashlib.sha256(text).digest()) + text + data


def opened(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the manifest and the data of a sound file."""
    end = _PREAMBLE.size + _PREAMBLE.unpack_from(content)[2]
    return json.loads(content[_PREAMBLE.size : end]), content[end:]


def state(epoch: int = 1, **changes) -> CheckpointState:
    arrays = {"kernel": np.full((3, 2), epoch, np.float32), "iterations": np.array(epoch, np.int64)}
    made = CheckpointState(epoch, 10 * epoch, arrays, {"note": [epoch]}, {"model": "a", "data": "b"})
    return replace(made, **changes)


def assert_same(first: CheckpointState, second: CheckpointState) -> None:
    assert (first.epoch, first.step) == (second.epoch, second.step)
    assert repr(dict(first.meta)) == repr(dict(second.meta))  # repr: NaN is not equal to itself
    assert dict(first.fingerprint) == dict(second.fingerprint)
    assert list(first.arrays) == list(second.arrays)
    for name, array in first.arrays.items():
        assert second.arrays[name].dtype == array.dtype
        assert second.arrays[name].shape == array.shape
        assert second.arrays[name].tobytes() == array.tobytes()
