"""Copies as the named arrays and the JSON that a checkpoint holds, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._callbacks.restoring import Restorer
from overlap_train._callbacks.values import Copier, Node

Arrays = dict[str, npt.NDArray[Any]]

# The name of the only entry of a dict that stands for an array.
_ARRAY = "@"


def pack(value: Any, prefix: str) -> tuple[Arrays, Node]:
    """Split a plain value into arrays, which share its memory, and JSON, to be handed to `unpack`."""
    return split(Copier(copy_arrays=False).copy(value), prefix)


def unpack(arrays: Mapping[str, npt.NDArray[Any]], packed: Node) -> Any:
    """Put a value together again from what `pack` made."""
    return Restorer().put(None, joined(packed, arrays))


def split(node: Node, prefix: str) -> tuple[Arrays, Node]:
    """Split a copy into arrays and JSON."""
    arrays: Arrays = {}

    def walk(part: Any) -> Any:
        if isinstance(part, (np.ndarray, tf.Tensor)):
            name = f"{prefix}/{len(arrays)}"
            arrays[name] = part if isinstance(part, np.ndarray) else part.numpy()
            return {_ARRAY: name}
        if isinstance(part, dict):
            return {key: walk(each) for key, each in part.items()}
        return [walk(each) for each in part] if isinstance(part, (list, tuple)) else part

    return arrays, walk(node)


def joined(packed: Node, arrays: Mapping[str, npt.NDArray[Any]]) -> Node:
    """Put a copy together again from its JSON and its arrays."""
    if isinstance(packed, dict):
        if packed.keys() == {_ARRAY}:
            return arrays[packed[_ARRAY]]
        return {key: joined(each, arrays) for key, each in packed.items()}
    return [joined(each, arrays) for each in packed] if isinstance(packed, list) else packed
