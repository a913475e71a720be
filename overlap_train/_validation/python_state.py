"""The Python values that a trace of a model's steps may hold, and whether they are the same later.

Tracing computes with numbers, texts and flags once and for all. Whoever sets one afterwards changes a trace
that is still to be made and no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras

from overlap_train._inspection.traces import Traces
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models

__all__ = ["PythonState"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# What Keras sets itself while it trains, and no step reads.
_OWN = frozenset(("built", "history", "stop_evaluating", "stop_training"))


class PythonState:
    """The plain attributes of a model, its layers, losses and metrics, as they are now.

    Args:
        model: compiled.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._values = dict(_values(model))

    def changed(self) -> str | None:
        """Returns what has been set to another value since, such as "Scaled.scale"; None if nothing was."""
        owners = _owners(self._model)
        for (number, name), value in _values(self._model):
            # What a class says counts until an instance says otherwise.
            default = getattr(type(owners[number]), name, value)
            known = self._values.get((number, name), default if _is_plain(default) else value)
            if known is not value and known != value and not _are_nan(known, value):
                return f"{type(owners[number]).__name__}.{name.lstrip('_')}"
        return None

    def forget_validation(self) -> None:
        """Drops what has been traced for the validation of the model."""
        Traces.of(self._model).forget("test")


def _owners(model: keras.Model) -> list[Any]:
    losses = [loss for loss in keras.tree.flatten(model.loss) if isinstance(loss, keras.losses.Loss)]
    return [*keras_models.flat_layers(model), *losses, *keras_metrics.metric_leaves(model)]


def _values(model: keras.Model) -> Iterator[tuple[tuple[int, str], Any]]:
    for number, owner in enumerate(_owners(model)):
        for name, value in vars(owner).items():
            public = not name.startswith("_") and name not in _OWN
            if (public or name == "_trainable") and _is_plain(value):
                yield (number, name), value


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _are_nan(*values: Any) -> bool:
    return all(isinstance(value, float) and math.isnan(value) for value in values)
