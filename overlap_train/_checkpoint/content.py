"""What a checkpoint of a training holds, put together for the file and taken apart again.

That is the values of its variables where it stands, and Python's state. A file whose checksums are right is
one that `as_checkpoint` has made, so what it says is not checked again.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._callbacks.restoring import NotPutBackError
from overlap_train._callbacks.rewind import FileMark
from overlap_train._callbacks.values import ObjectValue
from overlap_train._checkpoint import container
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._checkpoint.packing import pack, unpack
from overlap_train._data.cursor import CursorState
from overlap_train._inspection.traced import CapturedVariable
from overlap_train._snapshot import ModelState, StateVariable, Values
from overlap_train._support.encoding import array_of
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError

Specs = Sequence[tuple[tf.TensorShape, np.dtype[Any]]]

# What Python, NumPy and TensorFlow raise for values of the wrong type, range, size or depth.
_UNFIT = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError, TypeError),
    *(ValueError, NotPutBackError, tf.errors.OpError),
)
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


def stored_values(state: ModelState, arrays: Sequence[npt.NDArray[Any]]) -> Values:
    """Return the values of a checkpoint, in the order of `Values.flat`."""
    pairs = zip(arrays, state.variables, strict=True)
    return state.pack([tf.convert_to_tensor(array, variable.dtype) for array, variable in pairs])


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
    meta: Mapping[str, Any]  # what is in it besides variables: see `Resumer`
    values: Values
    position: CursorState
    files: tuple[FileMark, ...]

    @property
    def callbacks(self) -> list[ObjectValue]:
        """What the callbacks remembered."""
        return list(self.meta["callbacks"])


def as_checkpoint(
    point: StartPoint, values: Values, python: Mapping[str, Any], fingerprint: Mapping[str, str]
) -> CheckpointState:
    """Return the state that is written to a file; `python` was captured on the training thread."""
    parts = {
        **python,
        "values": [array_of(value) for value in values.flat()],
        "cursor": point.position.place(),
        "data": dict(point.position.data),
        "files": [asdict(mark) for mark in python["files"]],
        "stopped": point.stopped,
        "logs": plain_logs(point.logs),
    }
    arrays, packed = pack(parts, "parts")
    return CheckpointState(point.epoch, point.step, arrays, {"parts": packed}, fingerprint)


def take_apart(
    state: CheckpointState, variables: ModelState, require_same: Callable[[CheckpointState, Any], None]
) -> LoadedCheckpoint:
    """Take a checkpoint apart, or raise CheckpointCorruptError for one that cannot be.

    `require_same` raises for one of another training; it gets the settings of that, too.
    """
    try:
        parts = unpack(state.arrays, state.meta["parts"])
        require_same(state, parts["configuration"])
        values = stored_values(variables, parts["values"])
        position = CursorState(**parts["cursor"], data=parts["data"])
        files = tuple(FileMark(**mark) for mark in parts["files"])
    except _UNFIT as error:
        raise CheckpointCorruptError(f"a part of it is invalid ({error_text(error):.160})") from error
    return LoadedCheckpoint(state, parts, values, position, files)
