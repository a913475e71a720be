"""Mistakes in data that Keras's own messages do not explain: refused, or noted on Keras's errors.

Text, numbers and nothing at all in place of arrays are refused, with what to pass instead. Keras refuses them
too, but names only a type, prints all of the data, or fails somewhere inside. An error that Keras has raised
keeps its message and gets a note in the traceback (PEP 678, from Python 3.11 on). Leans on
`standardize_dtype`, so that nothing is refused which Keras takes. Any thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras.models import compiled_parts, overriding_class

_SCALARS = (str, bytes, bool, int, float, complex)
_REMEDIES = {
    "x": "turn it into numbers (keras.layers.StringLookup, TextVectorization), or pass tf.constant(x) to a "
    "model that takes text",
    "y": "turn labels into numbers, as by numpy.unique(y, return_inverse=True)[1]",
    "sample_weight": "pass numbers",
}


def refuse_plain_values(x: Any, y: Any = None, sample_weight: Any = None, *, role: str) -> None:
    """Raise ValueError for text, numbers and lists of numbers among the arrays, and if there is no array."""
    parts = {"x": x, "y": y, "sample_weight": sample_weight}
    if isinstance(x, (list, tuple, dict)) and all(leaf is None for leaf in keras.tree.flatten(parts)):
        raise ValueError(f"there is no {role} data: x holds no array; pass at least one")
    for name, part in parts.items():
        for leaf in _leaves(part):
            kind = _mistaken_kind(leaf)
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


def _leaves(part: Any) -> Iterator[Any]:
    """Yield the NumPy arrays in a part of the data, other arrays without rows, and the values in lists."""
    is_nested = isinstance(part, (list, tuple, dict))
    for leaf in keras.tree.flatten(part):
        is_scalar = is_nested and isinstance(leaf, _SCALARS) and not hasattr(leaf, "__array__")
        if is_scalar or isinstance(leaf, np.ndarray) or _is_number(leaf):
            yield leaf


def _is_number(part: Any) -> bool:
    """Whether a part of the data is an array or a tensor without dimensions."""
    try:
        return tuple(part.shape) == ()
    except Exception:  # it has no shape, or an unknown one
        return False


def _mistaken_kind(leaf: Any) -> str | None:
    """Return what a leaf that Keras does not take is: "text", "a number" or one of "numbers"; else None."""
    if _is_number(leaf):
        return "a number"
    if not isinstance(leaf, np.ndarray):
        return "text" if isinstance(leaf, (str, bytes)) else "numbers"
    try:
        keras.backend.standardize_dtype(leaf.dtype)
    except ValueError:
        return "text" if leaf.dtype.kind in "US" else None  # Keras takes objects that are all text
    return None


_METHODS = ("train_step", "test_step", "compute_loss")


class WithNote:
    """Adds a note to an error of its block if the data does not suit a model with Keras's own steps."""

    def __init__(self, model: keras.Model, element_spec: Callable[[], Any], whose: str) -> None:
        self._model, self._element_spec, self._role = model, element_spec, whose

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, (AttributeError, TypeError, ValueError)) or not hasattr(error, "add_note"):
            return
        note = _mistake(self._model, self._element_spec(), self._role)
        if note is not None and note not in getattr(error, "__notes__", ()):
            with contextlib.suppress(Exception):  # the error's class allows no notes
                error.add_note(note)


def _mistake(model: keras.Model, element_spec: Any, role: str) -> str | None:
    if any(overriding_class(model, name) is not None for name in _METHODS):
        return None
    x, y, _ = keras.utils.unpack_x_y_sample_weight(element_spec)
    rows = _shapes_of_rows(model, x)
    if rows:
        shapes = " and ".join(map(str, rows))
        return (
            f"The {role} data gives single rows, of shape {shapes}, where a batch of rows belongs: "
            "pass dataset.batch(32)."
        )
    if y is None and compiled_parts(model)[0] is not None:
        return (
            f"The {role} data has no targets, and the model is compiled with a loss: "
            "pass y, or a dataset of (x, y)."
        )
    return None


def _shapes_of_rows(model: keras.Model, x: Any) -> list[tuple[int | None, ...]]:
    """Return the shapes of the data for a model's inputs, if each lacks the dimension of the batch."""
    expected = [len(tensor.shape) for tensor in getattr(model, "inputs", None) or ()]
    shapes = [leaf.shape for leaf in tf.nest.flatten(x) if isinstance(leaf, tf.TensorSpec)]
    if not shapes or any(shape.rank is None for shape in shapes):
        return []
    are_rows = [shape.rank + 1 for shape in shapes] == expected
    return [tuple(shape.as_list()) for shape in shapes] if are_rows else []
