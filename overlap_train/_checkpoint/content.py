"""What a checkpoint of a training holds, put together for the file and taken apart again.

That is the values of its variables where it stands, the epochs that wait for their delivery, the validations
inside epochs with the snapshot of the one under way, and what `meta` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._callbacks.rewind import FileMark, read_marks
from overlap_train._checkpoint.container import CheckpointState, shortened
from overlap_train._checkpoint.meta import Extent, TrainingMeta, is_log
from overlap_train._copies.packing import pack, unpack
from overlap_train._copies.values import ObjectValue
from overlap_train._data.cursor import CursorState, check_remembered
from overlap_train._inspection.traced import CapturedVariable
from overlap_train._keras.randomness import check_random_states
from overlap_train._snapshot import InsideEpochs, ModelState, Snapshot, StateVariable, Values
from overlap_train._support.arguments import array_of, is_count
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError
from overlap_train.records import StepValidation

__all__ = [
    "LoadedCheckpoint",
    "PythonState",
    "ReportedSettings",
    "Specs",
    "StartPoint",
    "Undelivered",
    "are_logs",
    "as_checkpoint",
    "check_values",
    "pack_inside_epochs",
    "pack_undelivered",
    "pack_values",
    "plain_logs",
    "require_storable",
    "specs_of",
    "stored_values",
    "undelivered",
    "understood",
    "unpack_dict",
    "unpack_inside_epochs",
]


Arrays = dict[str, npt.NDArray[Any]]
Specs = Sequence[tuple[tf.TensorShape, np.dtype[Any]]]

_VARIABLES = "variables"
_DEEPEST_LOG = 8


@dataclass(frozen=True, eq=False)
class Undelivered:
    """An epoch that has been trained and not been delivered: its end and its training metrics."""

    snapshot: Snapshot
    logs: Mapping[str, Any]


def specs_of(state: ModelState) -> Specs:
    """Return which shape and dtype the value of each variable has to have, in the order of `Values.flat`.

    The shape is the variable's own: where it leaves a size open, the present value is of one of many.
    """
    return [(v.shape, np.dtype(v.dtype.as_numpy_dtype)) for v in state.variables]


def require_storable(variables: Iterable[StateVariable | CapturedVariable]) -> None:
    """Raise ValueError for a variable whose values no checkpoint can hold, such as text."""
    for variable in variables:
        kind = np.dtype(variable.dtype.as_numpy_dtype)
        if kind.hasobject or kind.fields is not None:
            raise ValueError(
                f"resume cannot store the variable {variable.name!r}, which holds values of the type "
                f"{variable.dtype.name}: a checkpoint holds numbers and booleans; leave resume out"
            )


def pack_values(values: Values, prefix: str = _VARIABLES) -> Arrays:
    """Return values as the arrays of a checkpoint."""
    return {f"{prefix}/{i}": array_of(value) for i, value in enumerate(values.flat())}


def check_values(arrays: Mapping[str, Any], specs: Specs, prefix: str = _VARIABLES) -> None:
    """Raise CheckpointCorruptError unless a checkpoint holds values of the right shapes."""
    for index, (shape, dtype) in enumerate(specs):
        array = arrays.get(f"{prefix}/{index}")
        if array is None or array.dtype != dtype or not shape.is_compatible_with(array.shape):
            found = "missing" if array is None else f"of shape {array.shape} and type {array.dtype}"
            raise CheckpointCorruptError(
                f"its variable {index} is {found}, where one of shape {shape} and type {dtype} belongs"
            )


def stored_values(state: ModelState, arrays: Mapping[str, Any], prefix: str = _VARIABLES) -> Values:
    """Return values that have been checked."""
    expected = state.read().flat()
    return state.pack(
        [tf.convert_to_tensor(arrays[f"{prefix}/{i}"], value.dtype) for i, value in enumerate(expected)]
    )


def pack_undelivered(epochs: Iterable[Undelivered]) -> tuple[Arrays, list[Any]]:
    """Split epochs that wait into arrays and JSON."""
    arrays: Arrays = {}
    described = []
    for number, waiting in enumerate(epochs):
        snapshot, prefix = waiting.snapshot, f"undelivered/{number}"
        parts = {"logs": dict(waiting.logs), "data": snapshot.position.data}
        packed, texts = pack(parts, f"{prefix}/parts")
        arrays |= packed | pack_values(snapshot.values, prefix)
        place = snapshot.position.place()
        described.append({"epoch": snapshot.epoch, "step": snapshot.step, "cursor": place, "parts": texts})
    return arrays, described


def undelivered(
    arrays: Mapping[str, Any], described: Sequence[Mapping[str, Any]], state: ModelState
) -> tuple[Undelivered, ...]:
    """Put epochs that wait together again; `TrainingMeta` has checked all of `described` but the parts."""
    specs, epochs = specs_of(state), []
    for number, entry in enumerate(described):
        prefix = f"undelivered/{number}"
        check_values(arrays, specs, prefix)
        parts = unpack_dict(arrays, entry["parts"], sharing=False)
        logs, data = parts.get("logs", {}), parts.get("data")
        if not are_logs(logs) or not isinstance(data, dict):
            raise CheckpointCorruptError(f"its epoch {entry['epoch']} that waits has no logs")
        position = CursorState(**entry["cursor"], data=data)
        stored = stored_values(state, arrays, prefix)
        epochs.append(Undelivered(Snapshot(entry["epoch"], entry["step"], stored, position), logs))
    return tuple(epochs)


def unpack_dict(arrays: Mapping[str, Any], described: Any, *, sharing: bool = True) -> dict[str, Any]:
    """Return what `pack` has made of a dict by names; see `unpack`."""
    parts = unpack(arrays, described, sharing=sharing)
    if type(parts) is not dict or not all(isinstance(name, str) for name in parts):
        raise CheckpointCorruptError("one of its states is no dict by name")
    return parts


def are_logs(logs: Any, depth: int = 0) -> bool:
    """Whether a value of a file is what a training shows and hands to callbacks: numbers, by name."""
    return type(logs) is dict and all(
        isinstance(name, str) and _is_log(value, depth) for name, value in logs.items()
    )


def _is_log(value: Any, depth: int) -> bool:
    if isinstance(value, (np.ndarray, np.generic, tf.Tensor)):
        return tf.as_dtype(value.dtype).is_numeric if isinstance(value, tf.Tensor) else _is_numeric(value)
    if depth >= _DEEPEST_LOG:
        return False
    if isinstance(value, (list, tuple)):
        return all(_is_log(item, depth + 1) for item in value)
    return are_logs(value, depth + 1) if isinstance(value, dict) else is_log(value)


def _is_numeric(array: Any) -> bool:
    # Those of ml_dtypes call themselves void.
    return array.dtype.kind in "biufc" or (array.dtype.kind == "V" and array.dtype.isbuiltin == 2)


def plain_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the logs as JSON has them; callbacks may have added anything to them."""
    plain = {name: array_of(v).tolist() if hasattr(v, "__array__") else v for name, v in logs.items()}
    kept = (type(None), bool, int, float, str)
    return {name: value for name, value in plain.items() if type(value) in kept}


_INSIDE = "inside_epochs"


def pack_inside_epochs(stood: InsideEpochs) -> tuple[Arrays, Any]:
    """Split the validations inside epochs into arrays and JSON."""
    values: dict[str, Any] = {
        name: [[each.epoch, each.step, dict(each.metrics)] for each in getattr(stood, name)]
        for name in ("delivered", "finished")
    }
    pending = stood.pending
    if pending is not None:
        values["pending"] = [pending.epoch, pending.step, dict(stood.live)]
    arrays, described = pack(values, f"{_INSIDE}/parts")
    return arrays | (pack_values(pending.values, _INSIDE) if pending is not None else {}), described


def unpack_inside_epochs(state: CheckpointState, described: Any, variables: ModelState) -> InsideEpochs:
    """Put them together again, or raise CheckpointCorruptError."""
    values = unpack_dict(state.arrays, described, sharing=False)
    done = _results(values, "delivered", state), _results(values, "finished", state)
    if "pending" not in values:
        return InsideEpochs(*done)
    epoch, step, live = _checked(values["pending"], state)
    check_values(state.arrays, specs_of(variables), _INSIDE)
    snapshot = Snapshot(epoch, step, stored_values(variables, state.arrays, _INSIDE))
    return InsideEpochs(*done, snapshot, live)


def _results(values: Mapping[str, Any], name: str, end: CheckpointState) -> tuple[StepValidation, ...]:
    entries = values.get(name)
    if not isinstance(entries, list):
        raise CheckpointCorruptError(f"its list of {name} validations inside epochs is missing")
    return tuple(StepValidation(*_checked(entry, end)) for entry in entries)


def _checked(entry: Any, end: CheckpointState) -> tuple[int, int, dict[str, Any]]:
    if isinstance(entry, list) and len(entry) == 3:
        epoch, step, metrics = entry
        if are_logs(metrics) and is_count(step, end.step) and is_count(epoch, end.epoch):
            return int(epoch), int(step), metrics
    raise CheckpointCorruptError(f"one of its validations inside epochs is invalid ({shortened(entry)})")


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
class LoadedCheckpoint:
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
class ReportedSettings:
    """What may differ when a training goes on, but is to be told."""

    settings: Mapping[str, str] = field(default_factory=dict)  # of this trainer
    # Of the model, its optimizer and its compilation.
    configuration: Mapping[str, str] = field(default_factory=dict)
    rate: Callable[[], str | None] = lambda: None  # with which the training goes on


@dataclass(frozen=True)
class PythonState:
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
    captured: PythonState,
    reported: ReportedSettings,
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
        settings=reported.settings,
        configuration=reported.configuration,
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
) -> LoadedCheckpoint:
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
    return LoadedCheckpoint(state, meta, files, callbacks, *parts)


def _random_states(state: CheckpointState, meta: TrainingMeta) -> Mapping[str, Any]:
    """Return the states of everybody's random generators, checked."""
    states = unpack_dict(state.arrays, meta.random, sharing=False)
    try:
        check_random_states(states)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(f"its random states are invalid ({error_text(error):.160})") from error
    return states
