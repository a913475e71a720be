"""Models that are traced once, and fitted from their first state again and again.

Tracing is most of what a small fit costs. `reference(build)` stands for `build()` where Keras gives the numbers
that ours are compared with, and `again(build)` for one of ours where the first fit of a model is tested elsewhere.
What was not put back as it was would make a comparison fail.
"""

from __future__ import annotations

from collections.abc import Callable

import keras

Build = Callable[..., keras.Model]


class _Kept:
    """A model, and the values that its variables had before its first step."""

    def __init__(self, model: keras.Model) -> None:
        model.optimizer.build(model.trainable_variables)
        self._model = model
        self._variables = [*model.variables, *model.optimizer.variables]
        self._values = [keras.ops.convert_to_numpy(variable).copy() for variable in self._variables]

    def restore(self) -> keras.Model:
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)
        self._model.reset_metrics()
        self._model.stop_training = False
        return self._model


_KEPT: dict[tuple[object, ...], _Kept] = {}


def reference(build: Build, *arguments: object) -> keras.Model:
    """Returns a model for `keras.Model.fit` as `build` makes it, traced already if it was asked for before.

    Args:
        build: a function of a module, which sets the seed and gives the model known shapes.
        arguments: names and numbers for `build`; no objects, which two models would share.
    """
    return _kept("keras", build, arguments)


def again(build: Build, *arguments: object) -> keras.Model:
    """Returns a model for our trainer as `reference` does."""
    return _kept("ours", build, arguments)


def _kept(whose: str, build: Build, arguments: tuple[object, ...]) -> keras.Model:
    fresh = build(*arguments)  # draws from all generators what any other model would draw
    kept = _KEPT.get((whose, build, *arguments))
    if kept is not None:
        return kept.restore()
    _KEPT[whose, build, *arguments] = _Kept(fresh)
    return fresh
