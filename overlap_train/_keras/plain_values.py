"""Text, numbers and nothing where Keras takes arrays: refused with what to pass instead.

Keras refuses them too, but names a type alone, prints all of the data, or fails in its own code. Leans on
`standardize_dtype`, so that nothing is refused which Keras takes. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

__all__ = ["refuse_plain_values"]

_SCALARS = (str, bytes, bool, int, float, complex)
_REMEDIES = {
    "x": "turn it into numbers (keras.layers.StringLookup, TextVectorization), or pass tf.constant(x) to a "
    "model that takes text",
    "y": "turn labels into numbers, as by numpy.unique(y, return_inverse=True)[1]",
    "sample_weight": "pass numbers",
}


def refuse_plain_values(x: Any, y: Any = None, sample_weight: Any = None, *, role: str) -> None:
    """Raise ValueError for text, numbers and lists of numbers among the arrays of the data, and for none."""
    if isinstance(x, (list, tuple, dict)) and _is_empty((x, y, sample_weight)):
        raise ValueError(f"there is no {role} data: x holds no array; pass at least one")
    for name, part in (("x", x), ("y", y), ("sample_weight", sample_weight)):
        for leaf in _leaves(part):
            kind = _kind(leaf)
            if kind == "numbers":
                raise ValueError(
                    f"{name} of the {role} data is a list of numbers, and Keras takes arrays; pass "
                    f"numpy.asarray({name})"
                )
            if kind == "a number":
                raise ValueError(
                    f"{name} of the {role} data is a single number, without rows; pass an array with one for "
                    "each sample"
                )
            if kind is not None:
                raise ValueError(f"{name} of the {role} data holds text; {_REMEDIES[name]}")


def _is_empty(data: Any) -> bool:
    return all(leaf is None for leaf in keras.tree.flatten(data))


def _leaves(part: Any) -> Iterator[Any]:
    """Yield the arrays of NumPy's in a part of the data, others without rows, and what lists hold."""
    if isinstance(part, np.ndarray) or _is_number(part):
        yield part
    elif isinstance(part, Mapping):
        yield from _leaves(list(part.values()))
    elif isinstance(part, (list, tuple)):
        for each in part:
            if isinstance(each, _SCALARS) and not hasattr(each, "__array__"):
                yield each
            else:
                yield from _leaves(each)


def _is_number(part: Any) -> bool:
    """Whether a part of the data is an array, or a tensor, of no dimension."""
    try:
        return tuple(part.shape) == ()
    except Exception:  # it has none, or cannot tell
        return False


def _kind(leaf: Any) -> str | None:
    """Return what is wrong with a leaf: it is "text", "a number" or one of "numbers"; or None."""
    if _is_number(leaf):
        return "a number"
    if not isinstance(leaf, np.ndarray):
        return "text" if isinstance(leaf, (str, bytes)) else "numbers"
    try:
        keras.backend.standardize_dtype(leaf.dtype)
    except ValueError:
        return "text" if leaf.dtype.kind in "US" else None  # objects that are all text it takes
    return None
