"""A checkpoint belongs to one training, and what differs is named part by part."""

from __future__ import annotations

import pytest

from overlap_train._checkpoint.state import layout
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train.errors import CheckpointMismatchError
from tests.checkpoint.states import state


def test_every_part_that_differs_is_named(tmp_path):
    with CheckpointStore(tmp_path) as store:
        path = store.save(
            state(fingerprint={"model": "dense 3x2\ndense 2x1", "data": "60000", "optimizer": "sgd"})
        )
    wanted = {"model": "dense 3x2\ndense 2x4", "data": "60000", "optimizer": "adam"}
    for load in (store.load_latest, lambda fingerprint: store.load(path, fingerprint)):
        with pytest.raises(CheckpointMismatchError) as raised:
            load(fingerprint=wanted)
        message = str(raised.value)
        assert "model: line 2, the checkpoint has 'dense 2x1', this training has 'dense 2x4'" in message
        assert "optimizer: the checkpoint has 'sgd', this training has 'adam'" in message
        assert "data:" not in message
        assert "same model and optimizer, or give another directory" in message


def test_parts_that_one_side_lacks_differ():
    with pytest.raises(CheckpointMismatchError, match="data: this training has none"):
        state().check({"model": "a"})
    with pytest.raises(CheckpointMismatchError, match="seed: the checkpoint has none"):
        state().check({"model": "a", "data": "b", "seed": "c"})
    state().check({"data": "b", "model": "a"})


def test_layout_forgets_what_the_process_built_before():
    import keras

    def build(units: int) -> str:
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
        made.compile(keras.optimizers.Adam(), "mse")
        made.optimizer.build(made.trainable_variables)
        return layout([*made.variables, *made.optimizer.variables])

    assert build(3) == build(3)
    assert build(3) != build(2)
    assert build(3).splitlines()[0].endswith("kernel 4x3 float32")
