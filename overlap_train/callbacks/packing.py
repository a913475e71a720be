"""States of callbacks as the named arrays and the JSON that a checkpoint holds, and back.

In the JSON, None, bool, int, float, str and lists stand for themselves. All else is a dict of one entry that
says what it is: `{"tuple": […]}`, `{"dict": [[key, value], …]}`, or `{"array": name}`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train.callbacks.state import CallbackState
from overlap_train.callbacks.values import VariableValue
from overlap_train.errors import CheckpointCorruptError

__all__ = ["pack", "unpack"]

Arrays = dict[str, npt.NDArray[Any]]


def pack(states: Iterable[CallbackState], prefix: str = "callbacks") -> tuple[Arrays, list[Any]]:
    """Splits states into arrays and JSON.

    Args:
        states: as captured.
        prefix: of the arrays' names, `prefix/position/attribute/number`.

    Returns:
        The arrays, which share memory with the states, and a JSON list, to be handed to `unpack`.
    """
    arrays: Arrays = {}
    described = []
    for position, state in enumerate(states):
        values = {
            name: _packed(value, f"{prefix}/{position}/{name}", arrays)
            for name, value in state.values.items()
        }
        described.append({"kind": state.kind, "values": values, "left_out": list(state.left_out)})
    return arrays, described


def unpack(arrays: Mapping[str, npt.NDArray[Any]], described: Any) -> tuple[CallbackState, ...]:
    """Puts states together again from what `pack` made.

    Args:
        arrays: those of `pack`, among others.
        described: the JSON list of `pack`.

    Raises:
        CheckpointCorruptError: the two do not fit together.
    """
    try:
        return tuple(
            CallbackState(
                kind=entry["kind"],
                values={name: _unpacked(value, arrays) for name, value in entry["values"].items()},
                left_out=tuple(entry["left_out"]),
                from_disk=True,
            )
            for entry in described
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointCorruptError(
            f"The callbacks' state makes no sense ({error!r}). Take an older checkpoint or start afresh."
        ) from error


def _packed(value: Any, name: str, arrays: Arrays) -> Any:
    def parts(items: Iterable[Any]) -> list[Any]:
        return [_packed(item, name, arrays) for item in items]

    def stored(array: Any) -> str:
        key = f"{name}/{len(arrays)}"
        arrays[key] = np.asarray(array)
        return key

    # NumPy's scalars come first: np.float64 is a float too.
    if isinstance(value, np.generic):
        return {"scalar": stored(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return parts(value)
    if isinstance(value, dict):
        return {"dict": [parts(pair) for pair in value.items()]}
    if isinstance(value, deque):
        return {"deque": [value.maxlen, parts(value)]}
    if isinstance(value, (tuple, set, frozenset)):
        return {type(value).__name__: parts(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, np.ndarray):
        return {"array": stored(value)}
    if isinstance(value, VariableValue):
        return {"variable": stored(value.tensor.numpy())}
    return {"tensor": stored(value.numpy())}


def _unpacked(value: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "deque":
        maxlen, items = content
        return deque(_unpacked(items, arrays), maxlen)
    if kind in _MADE_OF_ARRAY:
        return _MADE_OF_ARRAY[kind](arrays[content])
    return _MADE_OF_PARTS[kind](_unpacked(content, arrays))


_MADE_OF_ARRAY: Mapping[str, Any] = {
    "array": lambda array: array,
    "scalar": lambda array: array[()],
    "tensor": tf.constant,
    "variable": lambda array: VariableValue(tf.constant(array)),
}
_MADE_OF_PARTS: Mapping[str, Any] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
}
