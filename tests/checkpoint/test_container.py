"""What goes into a file comes out of it, and no damage to it stays unseen."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from overlap_train._checkpoint import container
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train.errors import CheckpointCorruptError, CheckpointError
from tests.checkpoint.states import assert_same, state

DTYPES = [
    *("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64"),
    *("complex64", "complex128", ">f4", "<U3", "S4", "datetime64[ns]"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
]


def roundtrip(saved: CheckpointState, path: Path) -> CheckpointState:
    path.write_bytes(b"".join(container.encode(saved)))
    return container.read(path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)], ids=str)
def test_every_dtype_and_shape_survives(tmp_path, dtype, shape):
    array = np.arange(math.prod(shape)).reshape(shape).astype("int8").astype(dtype)
    saved = state(arrays={"a": array, "b": np.float32([1])})
    assert_same(saved, roundtrip(saved, tmp_path / "f"))


def test_strided_arrays_survive_and_can_be_written(tmp_path):
    grid = np.arange(24.0).reshape(4, 6)
    saved = state(arrays={"t": grid.T, "s": grid[::2, ::-3], "f": np.asfortranarray(grid)})
    loaded = roundtrip(saved, tmp_path / "f")
    assert_same(saved, loaded)
    loaded.arrays["t"][:] = 5


def test_numbers_that_json_rounds_or_lacks_survive(tmp_path):
    meta = {"big": 2**53 + 1, "huge": -(10**300), "inf": [math.inf, -math.inf], "nan": math.nan, "zero": -0.0}
    saved = state(meta=meta)
    assert_same(saved, roundtrip(saved, tmp_path / "f"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrays": {"a": np.array([None])}}, "an array has dtype object, which cannot be stored"),
        ({"arrays": {"a": np.zeros(2, [("x", "f4")])}}, "an array has dtype"),
        ({"meta": {"a": np.float32(1)}}, "not JSON serializable"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path, changes, message):
    with CheckpointStore(tmp_path) as store, pytest.raises(TypeError, match=message):
        store.save(state(**changes))
    assert store.paths == ()


def test_every_flipped_bit_every_truncation_and_any_surplus_is_found(tmp_path):
    path = tmp_path / "f"
    sound = b"".join(container.encode(state()))
    flipped = [bytearray(sound) for _ in sound]
    for index, damaged in enumerate(flipped):
        damaged[index] ^= 1 << (index % 8)
    for content in [*flipped, *(sound[:size] for size in range(len(sound))), sound + b"\0"]:
        path.write_bytes(content)
        with pytest.raises(CheckpointCorruptError, match="cannot be used"):
            container.read(path)


def test_damage_is_named(tmp_path):
    sound = b"".join(container.encode(state()))
    path = tmp_path / "f"
    for content, message in [
        (sound[:-1], "truncated"),
        (b"PK" + sound[2:], "does not begin as a checkpoint"),
        (sound[:6] + b"\x07\0" + sound[8:], "version 7 of the layout, and this release reads version 5"),
        (sound[:-1] + b"\xff", "checksum of the array 'iterations' differs"),
        (sound[:60] + b"\xff" + sound[61:], "checksum of its manifest differs"),
    ]:
        path.write_bytes(content)
        with pytest.raises(CheckpointCorruptError, match=message):
            container.read(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*gone.otck"):
        container.read(tmp_path / "gone.otck")
