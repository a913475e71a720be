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

from overlap_train._callbacks.state import CallbackState
from overlap_train._callbacks.values import VariableValue
from overlap_train.errors import CheckpointCorruptError

__all__ = ["pack", "unpack"]

Arrays = dict[str, npt.NDArray[Any]]

# What is nested deeper would exhaust the stack when it is put back. A dict, with its pairs, counts three.
_DEEPEST = 200
# Python's text of longer integers may be limited to 640 digits, and is by default to 4300.
_LONGEST_INT_BITS = 2000


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
    left = dict(arrays)
    try:
        return tuple(_state(entry, left) for entry in described)
    except _UNFIT as error:
        raise CheckpointCorruptError(
            f"The callbacks' state makes no sense ({error!r:.160}). Take an older checkpoint or start afresh."
        ) from error


# What Python, NumPy and TensorFlow raise for values of the wrong type, range, size or depth.
_UNFIT = (
    *(KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, MemoryError),
    tf.errors.OpError,
)


def _state(entry: Any, left: Arrays) -> CallbackState:
    kind, left_out = entry["kind"], entry["left_out"]
    if not isinstance(kind, str) or not isinstance(left_out, list):
        raise TypeError(f"kind {kind!r:.80}, left_out {left_out!r:.80}")
    if not all(isinstance(name, str) for name in left_out):
        raise TypeError(f"left_out {left_out!r:.80}")
    values = {name: _unpacked(value, left) for name, value in entry["values"].items()}
    return CallbackState(kind, values, tuple(left_out), from_disk=True)


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
    if isinstance(value, int) and value.bit_length() > _LONGEST_INT_BITS:
        return {"int": hex(value)}
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


def _unpacked(value: Any, left: Arrays, depth: int = 0) -> Any:
    """Makes a value of its JSON, and takes its arrays out of those left: each belongs to one value."""
    if depth > _DEEPEST:
        raise ValueError(f"a value that is nested more than {_DEEPEST} deep")
    if isinstance(value, list):
        return [_unpacked(item, left, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "deque":
        maxlen, items = content
        return deque(_unpacked(items, left, depth + 1), maxlen)
    if kind in _MADE_OF_ARRAY:
        return _MADE_OF_ARRAY[kind](left.pop(content))
    return _MADE_OF_PARTS[kind](_unpacked(content, left, depth + 1))


def _tensor(array: npt.NDArray[Any]) -> tf.Tensor:
    if array.dtype.kind in "USmM":
        raise ValueError(f"a tensor of {array.dtype}")
    return tf.constant(array)


def _scalar(array: npt.NDArray[Any]) -> Any:
    if array.shape != ():
        raise ValueError(f"a scalar of shape {array.shape}")
    return array[()]


_MADE_OF_ARRAY: Mapping[str, Any] = {
    "array": lambda array: array,
    "scalar": _scalar,
    "tensor": _tensor,
    "variable": lambda array: VariableValue(_tensor(array)),
}
_MADE_OF_PARTS: Mapping[str, Any] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "bytes": bytes.fromhex,
    "int": lambda digits: int(digits, 16),
    "complex": lambda parts: complex(*parts),
}
