"""The validations inside epochs go through a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from overlap_train._checkpoint.container import CheckpointState
from overlap_train._checkpoint.content import pack_inside_epochs, unpack_inside_epochs
from overlap_train._snapshot import InsideEpochs, ModelState, Snapshot
from overlap_train.errors import CheckpointCorruptError
from overlap_train.records import StepValidation
from tests.pools import sequential

RESULTS = tuple(StepValidation(step // 4, step, {"val_loss": 1.0 / (step + 1)}) for step in (2, 5, 8))


def test_results_and_what_is_under_way_come_back():
    state = ModelState(sequential())
    stood = InsideEpochs(RESULTS[:1], RESULTS[1:], Snapshot(2, 9, state.read()), {"val_x_loss": 2.0})
    arrays, described = pack_inside_epochs(stood)
    found = unpack_inside_epochs(CheckpointState(3, 9, arrays), described, state)
    assert (found.delivered, found.finished, found.live) == (RESULTS[:1], RESULTS[1:], {"val_x_loss": 2.0})
    assert (found.pending.epoch, found.pending.step) == (2, 9)
    for ours, theirs in zip(found.pending.values.flat(), stood.pending.values.flat(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_a_training_will_do_again_is_not_kept():
    stood = InsideEpochs(RESULTS[:1], RESULTS[1:], Snapshot(2, 9, None), {"val_x_loss": 2.0})
    assert stood.until(5).pending is None
    assert (stood.until(5).finished, stood.until(5).live) == (RESULTS[1:2], {})
    assert not InsideEpochs()


@pytest.mark.parametrize(
    "values",
    [
        {"delivered": []},
        {"delivered": 3, "finished": []},
        {"delivered": [[0, 1]], "finished": []},
        {"delivered": [[0, 99, {"dict": []}]], "finished": []},
        {"delivered": [[9, 1, {"dict": []}]], "finished": []},
        {"delivered": [], "finished": [], "pending": [0, 1, {"dict": []}]},
        {"delivered": [], "finished": [], "pending": 3},
        {"delivered": [[{"int": "f" * 5000}, 1, 2]], "finished": []},
        {"delivered": [[0, 1, {"dict": [[1, 2]]}]], "finished": []},
        {"delivered": [[0, 1, {"dict": [["val_loss", {"set": []}]]}]], "finished": []},
        {"delivered": [], "finished": {"again": 0}},
    ],
    ids=lambda values: f"{values}"[:80],
)
def test_what_no_training_writes_is_corrupt(values):
    described = {"dict": [[name, value] for name, value in values.items()]}
    with pytest.raises(CheckpointCorruptError):
        unpack_inside_epochs(CheckpointState(2, 9), described, ModelState(sequential()))
