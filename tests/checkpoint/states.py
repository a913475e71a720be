"""States of a training, for the tests of this folder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from overlap_train._checkpoint.container import CheckpointState


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
