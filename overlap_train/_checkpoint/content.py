"""What a checkpoint of a training holds, put together for the file and taken apart again.

That is the values of its variables where it stands, the epochs that wait for their delivery, and Python's
state. A file whose checksums are right is one that `as_checkpoint` has made, so what it says is not checked
again.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._callbacks.rewind import FileMark
from overlap_train._checkpoint import container
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._copies.packing import pack, unpack
from overlap_train._copies.restoring import NotPutBackError
from overlap_train._copies.values import ObjectValue
from overlap_train._data.cursor import CursorState
from overlap_train._inspection.traced import CapturedVariable
from overlap_train._snapshot import ModelState, Snapshot, StateVariable, Values
from overlap_train._support.arguments import array_of
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError

Arrays = dict[str, npt.NDArray[Any]]
Specs = Sequence[tuple[tf.TensorShape, np.dtype[Any]]]

_VARIABLES = "variables"
# What Python, NumPy and TensorFlow raise for values of the wrong type, range, size or depth.
_UNFIT = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError, TypeError),
    *(ValueError, NotPutBackError, tf.errors.OpError),
)
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


def stored_values(state: ModelState, arrays: Mapping[str, Any], prefix: str = _VARIABLES) -> Values:
    """Return the values of a checkpoint."""
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
    """Put epochs that wait together again."""
    epochs = []
    for number, entry in enumerate(entries):
        parts = unpack(arrays, entry["parts"])
        position = CursorState(**entry["cursor"], data=parts["data"])
        values = stored_values(state, arrays, f"undelivered/{number}")
        snapshot = Snapshot(entry["epoch"], entry["step"], values, position)
        epochs.append(WaitingEpoch(snapshot, parts["logs"]))
    return tuple(epochs)


def plain_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the logs as JSON has them; callbacks may have added anything to them."""
    plain = {name: array_of(v).tolist() if hasattr(v, "__array__") else v for name, v in logs.items()}
    return {name: value for name, value in plain.items() if type(value) in _JSON_SCALARS}


def as_text(parts: Mapping[str, Any]) -> str:
    """Return copies of Python's values by name, such as a checkpoint holds, as text for another host."""
    arrays, packed = pack(dict(parts), "parts")
    pieces = container.encode(CheckpointState(0, 0, arrays, {"parts": packed}))
    return base64.b64encode(b"".join(pieces)).decode()


def of_text(text: str) -> dict[str, Any]:
    """Return what `as_text` was given."""
    state = container.decode(base64.b64decode(text))
    parts: dict[str, Any] = unpack(state.arrays, state.meta["parts"])
    return parts


@dataclass(frozen=True)
class StartPoint:
    """Where a resumed training goes on."""

    epoch: int  # the next one
    step: int  # steps made so far
    stopped: bool  # by a callback
    logs: Mapping[str, float]  # of the last delivered epoch
    position: CursorState
    undelivered: tuple[WaitingEpoch, ...] = ()  # oldest first
    plan: str = ""  # how the steps were computed, if there was a choice


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint that makes sense to this training, in parts."""

    state: CheckpointState
    values: Values
    position: CursorState
    files: tuple[FileMark, ...]
    callbacks: tuple[ObjectValue, ...]
    undelivered: tuple[WaitingEpoch, ...]
    random: Mapping[str, Any]

    @property
    def meta(self) -> Mapping[str, Any]:
        """What is in it besides the arrays."""
        return self.state.meta

    @property
    def first_undelivered(self) -> int:
        """The first epoch whose end no callback has seen."""
        return self.undelivered[0].snapshot.epoch if self.undelivered else self.state.epoch


@dataclass(frozen=True)
class ReportedSettings:
    """Settings that may differ when a training goes on; the user is told of a difference."""

    # Of the model, its optimizer, its compilation and the trainer.
    configuration: Mapping[str, str] = field(default_factory=dict)
    rate: Callable[[], str | None] = lambda: None  # the learning rate with which the training goes on


def as_checkpoint(
    point: StartPoint, values: Values, python: Mapping[str, Any], fingerprint: Mapping[str, str]
) -> CheckpointState:
    """Return the state that is written to a file; `python` was captured on the training thread."""
    arrays = pack_values(values)
    copies = {name: python[name] for name in ("callbacks", "random")} | {"data": dict(point.position.data)}
    packed = {}
    for name, content in copies.items():
        part_arrays, packed[name] = pack(content, name)
        arrays |= part_arrays
    undelivered_arrays, undelivered_entries = pack_undelivered(point.undelivered)
    meta = {
        **python,
        **packed,
        "files": [asdict(mark) for mark in python["files"]],
        "cursor": point.position.place(),
        "undelivered": undelivered_entries,
        "stopped": point.stopped,
        "logs": plain_logs(point.logs),
    }
    return CheckpointState(point.epoch, point.step, arrays | undelivered_arrays, meta, fingerprint)


def take_apart(state: CheckpointState, variables: ModelState) -> LoadedCheckpoint:
    """Take a checkpoint apart, or raise CheckpointCorruptError for one that cannot be."""
    meta, arrays = state.meta, state.arrays
    try:
        values = stored_values(variables, arrays)
        epochs = undelivered(arrays, meta["undelivered"], variables)
        position = CursorState(**meta["cursor"], data=unpack(arrays, meta["data"]))
        random = unpack(arrays, meta["random"])
        files = tuple(FileMark(**mark) for mark in meta["files"])
        callbacks = tuple(unpack(arrays, meta["callbacks"]))
    except _UNFIT as error:
        raise CheckpointCorruptError(f"a part of it is invalid ({error_text(error):.160})") from error
    return LoadedCheckpoint(state, values, position, files, callbacks, epochs, random)
