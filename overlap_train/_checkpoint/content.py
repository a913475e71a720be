"""What a checkpoint of a training holds, put together for the file and taken apart again.

That is the values of its variables where it stands, the epochs that wait for their delivery, the validations
inside epochs with the snapshot of the one under way, and what `meta` describes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._callbacks.rewind import FileMark, read_marks
from overlap_train._checkpoint import container
from overlap_train._checkpoint.container import CheckpointState, shortened
from overlap_train._checkpoint.meta import Extent, TrainingMeta, is_log
from overlap_train._copies.packing import pack, unpack
from overlap_train._copies.values import ObjectValue
from overlap_train._data.cursor import CursorState, check_position
from overlap_train._inspection.traced import CapturedVariable
from overlap_train._keras.randomness import check_random_states
from overlap_train._snapshot import InsideEpochs, ModelState, Snapshot, StateVariable, Values
from overlap_train._support.arguments import array_of, is_count
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError
from overlap_train.records import StepValidation

Arrays = dict[str, npt.NDArray[Any]]
Specs = Sequence[tuple[tf.TensorShape, np.dtype[Any]]]

_VARIABLES = "variables"
_DEEPEST_LOG = 8
_JSON_SCALARS = (type(None), bool, int, float, str)


@dataclass(frozen=True, eq=False)
class WaitingEpoch:
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
            actual = "missing" if array is None else f"of shape {array.shape} and type {array.dtype}"
            raise CheckpointCorruptError(
                f"its variable {index} is {actual}, where one of shape {shape} and type {dtype} belongs"
            )


def stored_values(state: ModelState, arrays: Mapping[str, Any], prefix: str = _VARIABLES) -> Values:
    """Return the values of a checkpoint, which `check_values` has checked."""
    pairs = enumerate(state.variables)
    return state.pack([tf.convert_to_tensor(arrays[f"{prefix}/{i}"], v.dtype) for i, v in pairs])


def pack_undelivered(epochs: Iterable[WaitingEpoch]) -> tuple[Arrays, list[Any]]:
    """Split epochs that wait into arrays and JSON."""
    arrays: Arrays = {}
    entries = []
    for number, epoch in enumerate(epochs):
        snapshot, prefix = epoch.snapshot, f"undelivered/{number}"
        parts = {"logs": dict(epoch.logs), "data": snapshot.position.data}
        part_arrays, texts = pack(parts, f"{prefix}/parts")
        arrays |= part_arrays | pack_values(snapshot.values, prefix)
        place = snapshot.position.place()
        entries.append({"epoch": snapshot.epoch, "step": snapshot.step, "cursor": place, "parts": texts})
    return arrays, entries


def undelivered(
    arrays: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], state: ModelState
) -> tuple[WaitingEpoch, ...]:
    """Put epochs that wait together again; `TrainingMeta` has checked all of their entries but the parts."""
    specs, epochs = specs_of(state), []
    for number, entry in enumerate(entries):
        prefix = f"undelivered/{number}"
        check_values(arrays, specs, prefix)
        parts = _unpack_dict(arrays, entry["parts"], sharing=False)
        logs, data = parts.get("logs", {}), parts.get("data")
        if not are_logs(logs) or not isinstance(data, dict):
            raise CheckpointCorruptError(f"its epoch {entry['epoch']} that waits has no logs")
        position = CursorState(**entry["cursor"], data=data)
        values = stored_values(state, arrays, prefix)
        epochs.append(WaitingEpoch(Snapshot(entry["epoch"], entry["step"], values, position), logs))
    return tuple(epochs)


def _unpack_dict(arrays: Mapping[str, Any], packed: Any, *, sharing: bool = True) -> dict[str, Any]:
    """Return a dict by names that `pack` was given; see `unpack`."""
    parts = unpack(arrays, packed, sharing=sharing)
    if type(parts) is not dict or not all(isinstance(name, str) for name in parts):
        raise CheckpointCorruptError("one of its states is no dict by name")
    return parts


def are_logs(logs: Any, depth: int = 0) -> bool:
    """Whether a value of a file is what a training shows and hands to callbacks: numbers, by name."""
    return type(logs) is dict and all(
        isinstance(name, str) and _is_log(value, depth) for name, value in logs.items()
    )


def _is_log(value: Any, depth: int) -> bool:
    if isinstance(value, tf.Tensor):
        return bool(value.dtype.is_numeric)
    if isinstance(value, (np.ndarray, np.generic)):  # the dtypes of ml_dtypes call themselves void
        return value.dtype.kind in "biufc" or (value.dtype.kind == "V" and value.dtype.isbuiltin == 2)
    if depth >= _DEEPEST_LOG:
        return False
    if isinstance(value, (list, tuple)):
        return all(_is_log(item, depth + 1) for item in value)
    return are_logs(value, depth + 1) if isinstance(value, dict) else is_log(value)


def plain_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the logs as JSON has them; callbacks may have added anything to them."""
    plain = {name: array_of(v).tolist() if hasattr(v, "__array__") else v for name, v in logs.items()}
    return {name: value for name, value in plain.items() if type(value) in _JSON_SCALARS}


_INSIDE = "inside_epochs"


def pack_inside_epochs(inside: InsideEpochs) -> tuple[Arrays, Any]:
    """Split the validations inside epochs into arrays and JSON."""
    values: dict[str, Any] = {
        name: [[each.epoch, each.step, dict(each.metrics)] for each in results]
        for name, results in (("delivered", inside.delivered), ("finished", inside.finished))
    }
    arrays: Arrays = {}
    if inside.pending is not None:
        values["pending"] = [inside.pending.epoch, inside.pending.step, dict(inside.live)]
        arrays = pack_values(inside.pending.values, _INSIDE)
    part_arrays, packed = pack(values, f"{_INSIDE}/parts")
    return arrays | part_arrays, packed


def unpack_inside_epochs(state: CheckpointState, packed: Any, variables: ModelState) -> InsideEpochs:
    """Put the validations inside epochs together again, or raise CheckpointCorruptError."""
    values = _unpack_dict(state.arrays, packed, sharing=False)
    delivered, finished = (_step_validations(values, name, state) for name in ("delivered", "finished"))
    if "pending" not in values:
        return InsideEpochs(delivered, finished)
    epoch, step, live = _checked(values["pending"], state)
    check_values(state.arrays, specs_of(variables), _INSIDE)
    snapshot = Snapshot(epoch, step, stored_values(variables, state.arrays, _INSIDE))
    return InsideEpochs(delivered, finished, snapshot, live)


def _step_validations(
    values: Mapping[str, Any], name: str, state: CheckpointState
) -> tuple[StepValidation, ...]:
    entries = values.get(name)
    if not isinstance(entries, list):
        raise CheckpointCorruptError(f"its list of {name} validations inside epochs is missing")
    return tuple(StepValidation(*_checked(entry, state)) for entry in entries)


def _checked(entry: Any, state: CheckpointState) -> tuple[int, int, dict[str, Any]]:
    if isinstance(entry, list) and len(entry) == 3:
        epoch, step, metrics = entry
        if are_logs(metrics) and is_count(step, state.step) and is_count(epoch, state.epoch):
            return epoch, step, metrics
    raise CheckpointCorruptError(f"one of its validations inside epochs is invalid ({shortened(entry)})")


def as_text(parts: Mapping[str, Any]) -> str:
    """Return copies of Python's values by name, such as a checkpoint holds, as text for another host."""
    arrays, packed = pack(dict(parts), "parts")
    pieces = container.encode(CheckpointState(0, 0, arrays, {"parts": packed}))
    return base64.b64encode(b"".join(pieces)).decode()


def of_text(text: str) -> dict[str, Any]:
    """Return what `as_text` was given."""
    state = container.decode(base64.b64decode(text))
    return _unpack_dict(state.arrays, state.meta["parts"])


@dataclass(frozen=True)
class StartPoint:
    """Where a resumed training goes on."""

    epoch: int  # the next one
    step: int  # steps made so far
    stopped: bool  # by a callback
    logs: Mapping[str, float]  # of the last delivered epoch
    max_lag: int  # when the checkpoint was written
    position: CursorState
    undelivered: tuple[WaitingEpoch, ...] = ()  # oldest first
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
    undelivered: tuple[WaitingEpoch, ...]
    inside: InsideEpochs
    random: Mapping[str, Any]

    @property
    def first_undelivered(self) -> int:
        """The first epoch whose end no callback has seen."""
        return self.undelivered[0].snapshot.epoch if self.undelivered else self.state.epoch


@dataclass(frozen=True)
class ReportedSettings:
    """Settings that may differ when a training goes on; the user is told of a difference."""

    settings: Mapping[str, str] = field(default_factory=dict)  # of this trainer
    # Of the model, its optimizer and its compilation.
    configuration: Mapping[str, str] = field(default_factory=dict)
    rate: Callable[[], str | None] = lambda: None  # the learning rate with which the training goes on


@dataclass(frozen=True)
class PythonState:
    """State of Python that a checkpoint holds besides the variables, captured on the training thread."""

    callbacks: tuple[ObjectValue, ...]
    files: tuple[FileMark, ...]  # how far callbacks had written theirs
    random: Mapping[str, Any]
    in_turn: bool  # whatever a resumed run does again has not drawn from the generators
    inside: InsideEpochs
    attributes: Mapping[str, Any]  # plain ones that the training has set on the model
    callback_settings: list[dict[str, Any]]  # as `Settings.records` returns them
    plan: str


def as_checkpoint(
    point: StartPoint,
    values: Values,
    python: PythonState,
    reported: ReportedSettings,
    fingerprint: Mapping[str, str],
) -> CheckpointState:
    """Return the state that is written to a file."""
    arrays = pack_values(values)

    def packed(content: Any, prefix: str) -> Any:
        part_arrays, texts = pack(content, prefix)
        arrays.update(part_arrays)
        return texts

    undelivered_arrays, undelivered_entries = pack_undelivered(point.undelivered)
    inside_arrays, inside = pack_inside_epochs(python.inside.until(point.step))
    arrays |= undelivered_arrays | inside_arrays
    meta = TrainingMeta(
        callbacks=packed(list(python.callbacks), "callbacks"),
        cursor=point.position.place(),
        data=packed(dict(point.position.data), "data"),
        undelivered=undelivered_entries,
        stopped=point.stopped,
        logs=plain_logs(point.logs),
        max_lag=point.max_lag,
        files=[asdict(mark) for mark in python.files],
        settings=reported.settings,
        configuration=reported.configuration,
        inside=inside,
        random=packed(dict(python.random), "random"),
        in_turn=python.in_turn,
        attributes=python.attributes,
        plan=python.plan,
        callback_settings=python.callback_settings,
    )
    return CheckpointState(point.epoch, point.step, arrays, meta.as_json(), fingerprint)


def take_apart(
    state: CheckpointState,
    variables: ModelState,
    extent: Extent,
    check_data: Callable[[CursorState], None] = check_position,
) -> LoadedCheckpoint:
    """Take a checkpoint apart, or raise CheckpointCorruptError for a part that is invalid.

    `check_data` raises ValueError for an invalid position in the data.
    """
    meta = TrainingMeta.of(state, extent)
    check_values(state.arrays, specs_of(variables))
    epochs = undelivered(state.arrays, meta.undelivered, variables)
    data = _unpack_dict(state.arrays, meta.data)
    try:
        check_data(CursorState(**meta.cursor, data=data))
        for epoch in epochs:
            check_position(epoch.snapshot.position)
    except ValueError as error:
        raise CheckpointCorruptError(f"its position in the data is invalid: {error}") from error
    files, callbacks = read_marks(meta.files), tuple(unpack(state.arrays, meta.callbacks))
    if not all(isinstance(each, ObjectValue) for each in callbacks):
        raise CheckpointCorruptError("a state of a callback in it is none")
    inside = unpack_inside_epochs(state, meta.inside, variables)
    random = _unpack_dict(state.arrays, meta.random, sharing=False)
    try:
        check_random_states(random)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(f"its random states are invalid ({error_text(error):.160})") from error
    return LoadedCheckpoint(state, meta, files, callbacks, data, epochs, inside, random)
