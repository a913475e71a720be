"""Plain attributes that a training sets on its model, such as a callback's `self.model.best_epoch = 3`.

Kept are numbers, texts and None that are others than as `fit` began. They are put back before the step is
traced. So one that the model's own code reads stays as it is: the trace of the unbroken run holds the value
of the beginning, and another would train otherwise. Where the model runs eagerly there is no trace.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from overlap_train._copies.values import keeps
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.lookup import variables_of
from overlap_train._inspection.origins import Origin, origin_of
from overlap_train._inspection.reach import names_in, reached
from overlap_train._keras.copies import base_attributes
from overlap_train._keras.models import flat_layers
from overlap_train.errors import CheckpointCorruptError

__all__ = ["ModelAttributes"]

_PLAIN = (bool, int, float, str, type(None))
# What Keras and the trainer set while they train.
_OF_A_RUN = frozenset(("built", "history", "stop_evaluating", "stop_training", "trainable"))


class ModelAttributes:
    """The plain attributes of a model that a training has changed. Belongs to the training thread.

    They are noted as `fit` begins. `code` is what computes a step besides the model: functions of the user's.
    """

    def __init__(self, model: keras.Model, code: Iterable[Any] = ()) -> None:
        self._model = model
        self._code = tuple(code)
        self._began = self._plain()

    def changed(self) -> dict[str, Any]:
        """Return those that are others than at the beginning."""
        unknown = object()
        return {
            name: value
            for name, value in self._plain().items()
            if type(value) is not type(before := self._began.get(name, unknown)) or value != before
        }

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise CheckpointCorruptError unless values can be those of the model's attributes."""
        there = variables_of(self._model)
        for name, value in values.items():
            plain = type(value) in _PLAIN and type(there.get(name)) in _PLAIN  # and no layer, say
            if not plain or not self._is_own(name):
                raise CheckpointCorruptError(f"its attribute {name!r:.80} of the model is invalid")

    def put_back(self, values: Mapping[str, Any]) -> list[str]:
        """Put attributes back, but for those that compiled code reads, whose names are returned."""
        there = self._plain()
        others = [name for name, value in values.items() if name not in there or there[name] != value]
        read = self._read() if others and not self._model.run_eagerly else frozenset()
        for name in others:
            if read is not None and name not in read:
                setattr(self._model, name, values[name])
        return [name for name in others if read is None or name in read]

    def _plain(self) -> dict[str, Any]:
        found = variables_of(self._model)
        return {name: value for name, value in found.items() if self._is_own(name) and type(value) in _PLAIN}

    def _is_own(self, name: str) -> bool:
        """Whether an attribute is neither Keras's nor something else than an attribute."""
        known = base_attributes() | _OF_A_RUN
        return not name.startswith("_") and name not in known and keeps(type(self._model), name)

    def _read(self) -> frozenset[str] | None:
        """Return the names in the code of the model and of its step; None if that is unknown."""
        model, layers = self._model, flat_layers(self._model)
        if any(origin_of(base) is Origin.LIBRARY for layer in layers for base in type(layer).__mro__):
            return None  # whose code is not looked into
        roots = [*layers, model.loss, *model.metrics, *self._code]
        try:
            functions = reached(roots, types.FunctionType)
        except Unclear:
            return None
        return names_in(functions)
