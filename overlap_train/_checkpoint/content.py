"""What a checkpoint of a training holds, put together for the file and taken apart again.

That is the values of its variables where it stands, and Python's state. A file whose checksums are right is
one that `as_checkpoint` has made, so what it says is not checked again.
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
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._copies.packing import pack, unpack
from overlap_train._copies.values import ObjectValue
from overlap_train._data.cursor import CursorState
from overlap_train._inspection.traced import CapturedVariable
from overlap_train._snapshot import ModelState, StateVariable, Values
from overlap_train._support.arguments import array_of
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError

Arrays = dict[str, npt.NDArray[Any]]
Specs = Sequence[tuple[tf.TensorShape, np.dtype[Any]]]

_VARIABLES = "variables"
_JSON_SCALARS = (type(None), bool, int, float, str)


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
    plan: str = ""  # how the steps were computed, if there was a choice


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint that makes sense to this training, in parts."""

    state: CheckpointState
    values: Values
    position: CursorState
    files: tuple[FileMark, ...]
    callbacks: tuple[ObjectValue, ...]
    random: Mapping[str, Any]

    @property
    def meta(self) -> Mapping[str, Any]:
        """What is in it besides the arrays."""
        return self.state.meta


@dataclass(frozen=True)
class ReportedSettings:
    """Settings that may differ when a training goes on; the user is told of a difference."""

    # Of the model, its optimizer, its compilation and the trainer.
    configuration: Mapping[str, str] = field(default_factory=dict)
    rate: Callable[[], str | None] = lambda: None  # the learning rate with which the training goes on


@dataclass(frozen=True)
class PythonState:
    """State of Python that a checkpoint holds besides the variables, captured on the training thread."""

    callbacks: tuple[ObjectValue, ...]
    files: tuple[FileMark, ...]  # how far callbacks had written theirs
    random: Mapping[str, Any]
    in_turn: bool  # whatever a resumed run does again has not drawn from the generators
    attributes: Mapping[str, Any]  # plain ones that the training has set on the model
    callback_settings: list[dict[str, str]]  # `Settings.texts`
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

    meta = {
        "callbacks": packed(list(python.callbacks), "callbacks"),
        "cursor": point.position.place(),
        "data": packed(dict(point.position.data), "data"),
        "stopped": point.stopped,
        "logs": plain_logs(point.logs),
        "files": [asdict(mark) for mark in python.files],
        "configuration": reported.configuration,
        "random": packed(dict(python.random), "random"),
        "in_turn": python.in_turn,
        "attributes": python.attributes,
        "plan": python.plan,
        "callback_settings": python.callback_settings,
    }
    return CheckpointState(point.epoch, point.step, arrays, meta, fingerprint)


def take_apart(state: CheckpointState, variables: ModelState) -> LoadedCheckpoint:
    """Take a checkpoint apart, or raise CheckpointCorruptError for one that cannot be."""
    meta, arrays = state.meta, state.arrays
    try:
        values = stored_values(variables, arrays)
        position = CursorState(**meta["cursor"], data=unpack(arrays, meta["data"]))
        random = unpack(arrays, meta["random"])
        files, callbacks = read_marks(meta["files"]), tuple(unpack(arrays, meta["callbacks"]))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(f"a part of it is invalid ({error_text(error):.160})") from error
    return LoadedCheckpoint(state, values, position, files, callbacks, random)
