"""Mistakes in data of which Keras's messages do not say what is wrong: refused, or noted on its errors.

Refused are text, numbers and nothing where Keras takes arrays, with what to pass instead. Keras refuses them
too, but names a type alone, prints all of the data, or fails in its own code. Where Keras has raised an
error, its message stays, and a note stands behind it in the traceback (PEP 678, from Python 3.11 on). Leans
on `standardize_dtype`, so that nothing is refused which Keras takes. Any thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras import models as keras_models

__all__ = ["Noted", "refuse_plain_values"]


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


_METHODS = ("train_step", "test_step", "compute_loss")


class Noted:
    """Adds a note to an error of its block if the data cannot be what the model is for.

    Of a model with a `train_step` or the like of its own nothing is known.
    """

    def __init__(self, model: keras.Model, element_spec: Callable[[], Any], whose: str) -> None:
        self._about = model, element_spec, whose

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, (AttributeError, TypeError, ValueError)) or not hasattr(error, "add_note"):
            return
        model, element_spec, whose = self._about
        note = _mistake(model, element_spec(), whose)
        if note is not None and note not in getattr(error, "__notes__", ()):
            with contextlib.suppress(Exception):  # whose class refuses it
                error.add_note(note)


def _mistake(model: keras.Model, element_spec: Any, whose: str) -> str | None:
    if any(keras_models.overriding_class(model, name) is not None for name in _METHODS):
        return None
    x, y, _ = keras.utils.unpack_x_y_sample_weight(element_spec)
    rows = _shapes_of_rows(model, x)
    if rows:
        shapes = " and ".join(map(str, rows))
        return (
            f"The {whose} data gives single rows, of shape {shapes}, where a batch of rows belongs: "
            "pass dataset.batch(32)."
        )
    if y is None and keras_models.compiled_parts(model)[0] is not None:
        return (
            f"The {whose} data has no targets, and the model is compiled with a loss: "
            "pass y, or a dataset of (x, y)."
        )
    return None


def _shapes_of_rows(model: keras.Model, x: Any) -> list[tuple[int | None, ...]]:
    """Return the shapes of a model's inputs in the data, if each lacks the dimension of the batch."""
    wanted = [tuple(each.shape) for each in getattr(model, "inputs", None) or ()]
    given = [leaf.shape for leaf in tf.nest.flatten(x) if isinstance(leaf, tf.TensorSpec)]
    if not wanted or len(given) != len(wanted) or any(shape.rank is None for shape in given):
        return []
    shapes = [tuple(shape.as_list()) for shape in given]
    lacks = all(len(one) == len(other) - 1 for one, other in zip(shapes, wanted, strict=True))
    return shapes if lacks else []
