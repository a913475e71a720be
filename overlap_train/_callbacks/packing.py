"""States of callbacks as the named arrays and the JSON that a checkpoint holds, and back.

In the JSON, None, bool, int, float, str and lists stand for themselves. All else is a dict of one entry that
says what it is: `{"tuple": […]}`, `{"dict": [[key, value], …]}`, or `{"array": name}`. Integers of more
digits than JSON takes are written in base 16.
"""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._callbacks.generators import GeneratorValue, made_generator
from overlap_train._callbacks.objects import ObjectValue
from overlap_train._callbacks.standard import made_of, parts_of
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
        names = {"left_out": list(state.left_out), "lost": list(state.lost)}
        described.append({"kind": state.kind, "values": values, **names})
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
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError),
    *(OSError, tf.errors.OpError),
)


def _state(entry: Any, left: Arrays) -> CallbackState:
    kind, left_out = entry["kind"], entry["left_out"]
    if not isinstance(kind, str) or not isinstance(left_out, list):
        raise TypeError(f"kind {kind!r:.80}, left_out {left_out!r:.80}")
    lost = entry.get("lost", left_out)  # which earlier releases did not tell apart
    if not isinstance(lost, list) or not all(isinstance(name, str) for name in [*left_out, *lost]):
        raise TypeError(f"left_out {left_out!r:.80}, lost {lost!r:.80}")
    values = {name: _unpacked(value, left) for name, value in entry["values"].items()}
    return CallbackState(kind, values, tuple(left_out), tuple(lost), from_disk=True)


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
    if tf.is_tensor(value):
        return {"tensor": stored(value.numpy())}
    return _packed_parts(value, parts)


def _packed_parts(value: Any, parts: Callable[[Iterable[Any]], list[Any]]) -> Any:
    """Returns the JSON of what is made of parts of its own kind."""
    if isinstance(value, GeneratorValue):
        return {"generator": [value.kind, *parts([value.state])]}
    if isinstance(value, ObjectValue):
        return {"object": [value.kind, value.partial, *parts([value.items, dict(value.attributes)])]}
    if isinstance(value, array.array):
        return {"numbers": [value.typecode, value.tolist()]}
    if isinstance(value, bytearray):
        return {"bytearray": value.hex()}
    kind, content = parts_of(value)
    return {kind: parts(content) if isinstance(content, list) else content}


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
    parts = _unpacked(content, left, depth + 1)
    return _MADE_OF_PARTS[kind](parts) if kind in _MADE_OF_PARTS else made_of(kind, parts)


def _tensor(array: npt.NDArray[Any]) -> tf.Tensor:
    if array.dtype.kind in "USmM":
        raise ValueError(f"a tensor of {array.dtype}")
    return tf.constant(array)


def _scalar(array: npt.NDArray[Any]) -> Any:
    if array.shape != ():
        raise ValueError(f"a scalar of shape {array.shape}")
    return array[()]


def _object(parts: Any) -> ObjectValue:
    kind, partial, items, attributes = parts
    if not isinstance(kind, str) or not isinstance(partial, bool) or not isinstance(attributes, dict):
        raise TypeError(f"an object {kind!r:.80}")
    if not all(isinstance(name, str) for name in attributes):
        raise TypeError(f"attributes {list(attributes)!r:.80}")
    return ObjectValue(kind, items, attributes, partial)


def _generator(parts: Any) -> GeneratorValue:
    kind, state = parts
    value = GeneratorValue(kind, state)
    made_generator(value)  # or raises
    return value


def _numbers(parts: Any) -> Any:
    kind, items = parts
    return array.array(kind, items)


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
    "complex": lambda parts: complex(*parts),
    "bytearray": bytearray.fromhex,
    "generator": _generator,
    "int": lambda text: int(text, 16),
    "numbers": _numbers,
    "object": _object,
}
