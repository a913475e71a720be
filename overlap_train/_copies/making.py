"""Values made of the parts that a file names, each kind by its own constructor.

The parts may be anything. What no value of ours is made of is refused before it is used: a range where a list
belongs would keep a constructor busy for ever.
"""

from __future__ import annotations

import array
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._copies.generators import GeneratorValue, made_generator
from overlap_train._copies.hashing import spread
from overlap_train._copies.objects import ObjectValue
from overlap_train._copies.standard import made_of
from overlap_train._copies.values import VariableValue

__all__ = ["HOLDERS", "MADE_OF_ARRAY", "made", "written"]


def made(kind: str, parts: Any) -> Any:
    """Returns a value of its parts.

    Raises:
        KeyError: there is no such kind.
        TypeError: the parts are none of this kind, as for what the constructors of Python, NumPy and
            TensorFlow raise.
    """
    parts = written(parts)
    return _MADE_OF_PARTS[kind](parts) if kind in _MADE_OF_PARTS else made_of(kind, parts)


def written(parts: Any) -> Any:
    """Returns parts as they are, if they are what is written for a value: a list or a text."""
    if type(parts) not in (list, str):
        raise TypeError(f"a value that is made of a {type(parts).__name__}")
    return parts


def _tensor(array: npt.NDArray[Any]) -> tf.Tensor:
    if array.dtype.kind in "USmM":
        raise ValueError(f"a tensor of {array.dtype}")
    return tf.constant(array)


def _scalar(array: npt.NDArray[Any]) -> Any:
    if array.shape != ():
        raise ValueError(f"a scalar of shape {array.shape}")
    return array[()]


def _list_of(dtype: type) -> Callable[[npt.NDArray[Any]], list[Any]]:
    def listed(array: npt.NDArray[Any]) -> list[Any]:
        if array.dtype != dtype or array.ndim != 1:
            raise ValueError(f"a list of numbers of {array.dtype}{array.shape}")
        return array.tolist()

    return listed


def _dict(parts: Any) -> dict[Any, Any]:
    pairs = [(key, item) for key, item in parts]
    spread(key for key, _ in pairs)
    return dict(pairs)


def _object(parts: Any) -> ObjectValue:
    kind, partial, items, attributes = parts
    if not isinstance(kind, str) or not isinstance(partial, bool) or not isinstance(attributes, dict):
        raise TypeError(f"an object {reprlib.repr(kind):.80}")
    if not all(isinstance(name, str) for name in attributes):
        raise TypeError(f"attributes {reprlib.repr(list(attributes)):.80}")
    return ObjectValue(kind, items, attributes, partial)


def _generator(parts: Any) -> GeneratorValue:
    kind, state = parts
    value = GeneratorValue(kind, state)
    made_generator(value)  # or raises
    return value


def _numbers(parts: Any) -> Any:
    kind, items = parts
    return array.array(kind, written(items))


MADE_OF_ARRAY: Mapping[str, Any] = {
    "array": lambda array: array,
    "floats": _list_of(np.float64),
    "ints": _list_of(np.int64),
    "scalar": _scalar,
    "tensor": _tensor,
    "variable": lambda array: VariableValue(_tensor(array)),
}
_MADE_OF_PARTS: Mapping[str, Any] = {
    "tuple": tuple,
    "set": lambda parts: set(spread(parts)),
    "frozenset": lambda parts: frozenset(spread(parts)),
    "dict": _dict,
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
    "bytearray": bytearray.fromhex,
    "generator": _generator,
    "int": lambda text: int(text, 16),
    "numbers": _numbers,
    "object": _object,
}
# Of these, the containers, which hold what they are made of as it is.
HOLDERS = frozenset(("dict", "frozenset", "object", "set", "tuple"))
