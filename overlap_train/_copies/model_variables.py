"""Which variables are a model's: a snapshot restores these, whoever else holds them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import keras

__all__ = ["ModelVariables"]


class ModelVariables(Collection[int]):
    """The `id` of each variable of a model and of what it is compiled with, listed when first asked."""

    def __init__(self, model: keras.Model | None) -> None:
        self._model = model
        self._ids: frozenset[int] | None = None

    def __contains__(self, identity: object) -> bool:
        return identity in self._listed()

    def __iter__(self) -> Any:
        return iter(self._listed())

    def __len__(self) -> int:
        return len(self._listed())

    def _listed(self) -> frozenset[int]:
        if self._ids is not None:
            return self._ids
        ids = frozenset(id(variable) for variable in self._variables())
        model, optimizer = self._model, getattr(self._model, "optimizer", None)
        if model is None or (model.built and getattr(optimizer, "built", True)):
            self._ids = ids  # or more will come
        return ids

    def _variables(self) -> list[Any]:
        if self._model is None:
            return []
        optimizer = getattr(self._model, "optimizer", None)
        metrics = getattr(self._model, "metrics_variables", ())
        found = [*self._model.variables, *metrics, *(optimizer.variables if optimizer is not None else ())]
        return [*found, *(v.value for v in found)]
