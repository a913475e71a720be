"""What Python held when a validation was traced, and whether it holds the same later.

Tracing computes with numbers, texts and flags once and for all. Keras traces a validation when it first
validates; whoever sets one of these after our trace and before that changes what Keras sees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras

from overlap_train._inspection.reads import Reading
from overlap_train._inspection.traces import Traces
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models

__all__ = ["TracedWith"]

_SETTINGS: tuple[Callable[[], Any], ...] = (
    keras.config.dtype_policy,
    keras.config.epsilon,
    keras.config.floatx,
    keras.config.image_data_format,
)


class TracedWith:
    """What the user's code reads in a validation, and attributes of the model's parts, as they are now."""

    def __init__(self, model: keras.Model, function: Callable[..., Any]) -> None:
        self.validated = False  # whether a validation has begun since, with which Keras would have traced
        self._model = model
        self._function = function
        self._settings = _settings()
        self._reading = self._read()

    def changed(self) -> str | None:
        """Returns what has been set to another value since, such as "Scaled.scale"; None if nothing was."""
        if keras_models.runs_eagerly(self._model):  # nothing is traced
            return None
        changed = [name for name, value in _settings().items() if value != self._settings[name]]
        if changed:
            return changed[0]
        before, now = self._reading, self._read()
        if before is None or now is None:
            return "something that its code may read"
        return now.change_since(before)

    def forget_validation(self) -> None:
        """Drops what has been traced for the validation of the model."""
        Traces.of(self._model).forget("test")

    def _read(self) -> Reading | None:
        """Reads the code; returns None if that cannot be told."""
        model = self._model
        parts = [model, *keras_metrics.metric_leaves(model)]
        # Reading asks objects of any class for attributes and lengths; what they raise is no reason to fail.
        with contextlib.suppress(Exception):
            return Reading([*parts, *keras.tree.flatten(model.loss), self._function])
        return None


def _settings() -> dict[str, str]:
    return {f"keras.config.{setting.__name__}": repr(setting()) for setting in _SETTINGS}
