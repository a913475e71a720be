"""Notes on what Keras raises of data with a usual mistake: its messages do not say what is wrong there.

The message stays Keras's. The note stands behind it in the traceback (PEP 678, from Python 3.11 on).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import methods
from overlap_train._keras import models as keras_models

__all__ = ["Noted"]

_METHODS = ("train_step", "test_step", "compute_loss")


class Noted:
    """Adds a note to a TypeError or ValueError of its block if the data cannot be what the model is for.

    Of a model with a `train_step` or the like of its own nothing is known.
    """

    def __init__(self, model: keras.Model, element_spec: Callable[[], Any], whose: str) -> None:
        self._about = model, element_spec, whose

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, (TypeError, ValueError)) or not hasattr(error, "add_note"):
            return
        model, element_spec, whose = self._about
        note = _mistake(model, element_spec(), whose)
        if note is not None and note not in getattr(error, "__notes__", ()):
            with contextlib.suppress(Exception):  # whose class refuses it
                error.add_note(note)


def _mistake(model: keras.Model, element_spec: Any, whose: str) -> str | None:
    if any(methods.overriding_class(model, name) is not None for name in _METHODS):
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
