"""The variables' values in a checkpoint: of where it stands, and of the epochs that wait for delivery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._checkpoint.meta import is_log
from overlap_train._copies.packing import pack, unpack
from overlap_train._data.cursor import CursorState
from overlap_train._inspection.traced import CapturedVariable
from overlap_train._snapshot import ModelState, Snapshot, StateVariable, Values
from overlap_train._support.numbers import array_of
from overlap_train.errors import CheckpointCorruptError

__all__ = [
    "Specs",
    "Undelivered",
    "are_logs",
    "check_values",
    "pack_undelivered",
    "pack_values",
    "plain_logs",
    "require_storable",
    "specs_of",
    "stored_values",
    "undelivered",
    "unpack_dict",
]

Arrays = dict[str, npt.NDArray[Any]]
Specs = Sequence[tuple[tf.TensorShape, np.dtype[Any]]]

_HERE = "variables"
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


def pack_values(values: Values, prefix: str = _HERE) -> Arrays:
    """Return values as the arrays of a checkpoint."""
    return {f"{prefix}/{i}": array_of(value) for i, value in enumerate(values.flat())}


def check_values(arrays: Mapping[str, Any], specs: Specs, prefix: str = _HERE) -> None:
    """Raise CheckpointCorruptError unless a checkpoint holds values of the right shapes."""
    for index, (shape, dtype) in enumerate(specs):
        array = arrays.get(f"{prefix}/{index}")
        if array is None or array.dtype != dtype or not shape.is_compatible_with(array.shape):
            found = "missing" if array is None else f"of shape {array.shape} and type {array.dtype}"
            raise CheckpointCorruptError(
                f"its variable {index} is {found}, where one of shape {shape} and type {dtype} belongs"
            )


def stored_values(state: ModelState, arrays: Mapping[str, Any], prefix: str = _HERE) -> Values:
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
