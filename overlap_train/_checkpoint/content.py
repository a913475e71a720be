"""What a checkpoint of a training holds, put together for the file and taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from overlap_train._callbacks.rewind import FileMark, read_marks
from overlap_train._checkpoint.inside_epochs import pack_inside_epochs, unpack_inside_epochs
from overlap_train._checkpoint.meta import Extent, TrainingMeta
from overlap_train._checkpoint.state import CheckpointState
from overlap_train._checkpoint.values import (
    Undelivered,
    check_values,
    pack_undelivered,
    pack_values,
    plain_logs,
    specs_of,
    undelivered,
    unpack_dict,
)
from overlap_train._copies.packing import pack, unpack
from overlap_train._copies.values import ObjectValue
from overlap_train._data.cursor import CursorState, check_remembered
from overlap_train._keras.randomness import check_random_states
from overlap_train._snapshot import InsideEpochs, ModelState, Values
from overlap_train._support.printing import told
from overlap_train.errors import CheckpointCorruptError

__all__ = ["Captured", "Found", "StartPoint", "Told", "as_checkpoint", "understood"]


@dataclass(frozen=True)
class StartPoint:
    """Where a resumed training goes on."""

    epoch: int  # the next one
    step: int  # steps made so far
    stopped: bool  # by a callback
    logs: Mapping[str, float]  # of the last delivered epoch
    max_lag: int  # when the checkpoint was written
    position: CursorState
    undelivered: tuple[Undelivered, ...] = ()  # oldest first
    inside: InsideEpochs | None = None
    plan: str = ""  # how the steps were computed, if there was a choice


@dataclass(frozen=True)
class Found:
    """A checkpoint that makes sense to this training, in parts."""

    state: CheckpointState
    meta: TrainingMeta
    files: tuple[FileMark, ...]
    callbacks: tuple[ObjectValue, ...]
    data: dict[str, Any]
    undelivered: tuple[Undelivered, ...]
    inside: InsideEpochs
    random: Mapping[str, Any]
    attributes: Mapping[str, Any]

    @property
    def first_undelivered(self) -> int:
        """The first epoch whose end no callback has seen."""
        return self.undelivered[0].snapshot.epoch if self.undelivered else self.state.epoch


@dataclass(frozen=True)
class Told:
    """What may differ when a training goes on, but is to be told."""

    settings: Mapping[str, str] = field(default_factory=dict)  # of this trainer
    # Of the model, its optimizer and its compilation.
    configuration: Mapping[str, str] = field(default_factory=dict)
    rate: Callable[[], str | None] = lambda: None  # with which the training goes on


@dataclass(frozen=True)
class Captured:
    """What is taken beside the variables when a checkpoint is to be written."""

    callbacks: tuple[ObjectValue, ...]
    files: tuple[FileMark, ...]  # how far callbacks had written theirs
    random: Mapping[str, Any]
    in_turn: bool  # nothing that is done again has drawn from the generators
    inside: InsideEpochs
    # Plain ones that the training has set on the model.
    attributes: Mapping[str, Any] = field(default_factory=dict)
    callback_settings: Sequence[Mapping[str, Any]] = ()  # as `Settings.noted` returns them
    plan: str = ""


def as_checkpoint(
    point: StartPoint,
    values: Values,
    captured: Captured,
    told: Told,
    fingerprint: Mapping[str, str],
) -> CheckpointState:
    """Return what is written."""
    arrays, described = pack(list(captured.callbacks), "callbacks")
    data_arrays, data = pack(dict(point.position.data), "data")
    waiting_arrays, waiting = pack_undelivered(point.undelivered)
    random_arrays, random = pack(dict(captured.random), "random")
    inside_arrays, inside = pack_inside_epochs(captured.inside.until(point.step))
    arrays |= data_arrays | waiting_arrays | random_arrays | inside_arrays | pack_values(values)
    meta = TrainingMeta(
        callbacks=described,
        cursor=point.position.place(),
        data=data,
        undelivered=waiting,
        stopped=point.stopped,
        logs=plain_logs(point.logs),
        max_lag=point.max_lag,
        files=[asdict(mark) for mark in captured.files],
        settings=told.settings,
        configuration=told.configuration,
        inside=inside,
        random=random,
        in_turn=captured.in_turn,
        attributes=captured.attributes,
        plan=captured.plan,
        callback_settings=list(map(dict, captured.callback_settings)),
    )
    return CheckpointState(point.epoch, point.step, arrays, meta.as_json(), fingerprint)


def understood(
    state: CheckpointState,
    variables: ModelState,
    extent: Extent,
    check_data: Callable[[CursorState], None] = check_remembered,
) -> Found:
    """Take a checkpoint apart, or raise CheckpointCorruptError for a part that is invalid.

    `check_data` raises ValueError for a position in the data that is none.
    """
    meta = TrainingMeta.of(state, extent)
    check_values(state.arrays, specs_of(variables))
    waiting = undelivered(state.arrays, meta.undelivered, variables)
    data = unpack_dict(state.arrays, meta.data)
    try:
        check_data(CursorState(**meta.cursor, data=data))
        for waits in waiting:
            check_remembered(waits.snapshot.position)
    except ValueError as error:
        raise CheckpointCorruptError(f"its position in the data is invalid: {error}") from error
    files, callbacks = read_marks(meta.files), tuple(unpack(state.arrays, meta.callbacks))
    if not all(isinstance(each, ObjectValue) for each in callbacks):
        raise CheckpointCorruptError("a state of a callback in it is none")
    inside = unpack_inside_epochs(state, meta.inside, variables)
    random = _random_states(state, meta)
    parts = (data, waiting, inside, random, meta.attributes)
    return Found(state, meta, files, callbacks, *parts)


def _random_states(state: CheckpointState, meta: TrainingMeta) -> Mapping[str, Any]:
    """Return the states of everybody's random generators, checked."""
    states = unpack_dict(state.arrays, meta.random, sharing=False)
    try:
        check_random_states(states)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(f"its random states are invalid ({told(error):.160})") from error
    return states
