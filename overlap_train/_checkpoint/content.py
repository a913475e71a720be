"""What a checkpoint of a training holds, put together for the file and taken apart again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from overlap_train._callbacks.packing import pack, unpack
from overlap_train._callbacks.rewind import FileMark, read_marks
from overlap_train._callbacks.state import CallbackState
from overlap_train._checkpoint.meta import TrainingMeta
from overlap_train._checkpoint.state import CheckpointState
from overlap_train._checkpoint.values import (
    Undelivered,
    check_values,
    pack_undelivered,
    pack_values,
    plain_logs,
    specs_of,
    undelivered,
)
from overlap_train._data.cursor import CursorState
from overlap_train._snapshot import ModelState, Values

__all__ = ["Captured", "Found", "StartPoint", "as_checkpoint", "understood"]


@dataclass(frozen=True)
class StartPoint:
    """Where a resumed training goes on.

    Attributes:
        epoch: the next epoch.
        step: training steps made so far.
        stopped: whether a callback had stopped the training.
        logs: the logs of the last delivered epoch.
        max_lag: how far the training ran ahead when the checkpoint was written.
        position: in the data.
        undelivered: the epochs before it that wait for their delivery, oldest first.
    """

    epoch: int
    step: int
    stopped: bool
    logs: Mapping[str, float]
    max_lag: int
    position: CursorState
    undelivered: tuple[Undelivered, ...] = ()


@dataclass(frozen=True)
class Found:
    """A checkpoint that makes sense to this training, in parts."""

    state: CheckpointState
    meta: TrainingMeta
    files: tuple[FileMark, ...]
    callbacks: tuple[CallbackState, ...]
    data: dict[str, Any]
    undelivered: tuple[Undelivered, ...]

    @property
    def first_undelivered(self) -> int:
        """The first epoch whose end no callback has seen."""
        return self.undelivered[0].snapshot.epoch if self.undelivered else self.state.epoch


@dataclass(frozen=True)
class Captured:
    """What is taken beside the variables when a checkpoint is to be written.

    Attributes:
        callbacks: what they remember.
        files: how far they had written theirs.
    """

    callbacks: tuple[CallbackState, ...]
    files: tuple[FileMark, ...]


def as_checkpoint(
    point: StartPoint,
    values: Values,
    captured: Captured,
    settings: Mapping[str, str],
    fingerprint: Mapping[str, str],
) -> CheckpointState:
    """Returns what is written.

    Args:
        point: where the training stands.
        values: of its variables.
        captured: what else was taken.
        settings: what may differ when the training goes on, but is to be told.
        fingerprint: whom the checkpoint belongs to.
    """
    arrays, described = pack(captured.callbacks)
    data_arrays, data = pack([CallbackState("data", point.position.data)], prefix="data")
    waiting_arrays, waiting = pack_undelivered(point.undelivered)
    arrays |= data_arrays | waiting_arrays | pack_values(values)
    meta = TrainingMeta(
        callbacks=described,
        cursor=point.position.place(),
        data=data,
        undelivered=waiting,
        stopped=point.stopped,
        logs=plain_logs(point.logs),
        max_lag=point.max_lag,
        files=[asdict(mark) for mark in captured.files],
        settings=settings,
    )
    return CheckpointState(point.epoch, point.step, arrays, meta.as_json(), fingerprint)


def understood(state: CheckpointState, variables: ModelState, num_batches: int | None) -> Found:
    """Takes a checkpoint apart.

    Args:
        state: as read.
        variables: of the training that is to go on.
        num_batches: in one pass over the data, where that is known.

    Raises:
        CheckpointCorruptError: a part makes no sense.
    """
    meta = TrainingMeta.of(state, num_batches=num_batches)
    check_values(state.arrays, specs_of(variables))
    waiting = undelivered(state.arrays, meta.undelivered, variables)
    data = [dict(part.values) for part in unpack(state.arrays, meta.data)]
    files, callbacks = read_marks(meta.files), unpack(state.arrays, meta.callbacks)
    return Found(state, meta, files, callbacks, data[0] if data else {}, waiting)
