"""A `fit` or an `evaluate` that is not Keras's: the model's own, or what a library has put in its place.

It may call Keras's method, and so come back to the trainer, or train by itself; only calling it shows which.
If it has trained by itself, extras that Keras cannot do have had no effect, and an error behind it says so.
The model keeps what it has learned. All on the thread that called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import keras

from overlap_train._keras import models as keras_models
from overlap_train._keras import routes
from overlap_train._training.settings import TrainerSettings
from overlap_train._validation.validation_sources import is_set
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.functions import EvaluationFunction
from overlap_train.options.validation import ValidationPolicy, ValidationSet

_OF_EVALUATE = frozenset({"keep_bytes", "workers"})


def extras_of_fit(
    settings: TrainerSettings,
    arguments: Iterable[str],
    resume: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[str]:
    """Returns what a call of `fit` asks for that Keras cannot do, in the words of the user's code.

    `arguments` are those of the trainer besides the model and the policies.
    """
    extras = [] if resume is None else ["resume"]
    if _has_sets(settings.model, args, kwargs):
        extras.append("several validation sets")
    extras += [*_changed_fields(settings.validation), *_changed_fields(settings.execution), *arguments]
    if not settings.stock:
        extras.append("train_step of the trainer")
    return extras if settings.stock_validation else [*extras, "validation_step of the trainer"]


def extras_of_evaluate(settings: TrainerSettings, arguments: Iterable[str]) -> list[str]:
    """Returns what a call of `evaluate` asks for that Keras cannot do, in the words of the user's code."""
    extras = [*_changed_fields(settings.validation, _OF_EVALUATE), *arguments]
    return extras if settings.stock_validation else [*extras, "validation_step of the trainer"]


def _changed_fields(
    options: ValidationPolicy | ExecutionPlan, names: Collection[str] | None = None
) -> list[str]:
    """Returns which fields of a policy, or which of `names`, have another value than their default."""
    kind, default = type(options), type(options)()
    fields = kind.__dataclass_fields__ if names is None else sorted(names)
    return [
        f"{kind.__name__}({name}=...)" for name in fields if getattr(options, name) != getattr(default, name)
    ]


def _has_sets(model: keras.Model, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call names several validation sets, or one as only a `Trainer` takes it."""
    try:
        arguments = inspect.signature(model.fit).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        arguments = {}
    data = {**arguments, **kwargs}.get("validation_data")
    several = isinstance(data, dict) and bool(data) and all(map(is_set, data.values()))
    return several or any(map(_is_ours, (*args, *kwargs.values())))


def _is_ours(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else [value]
    return any(isinstance(part, (ValidationSet, EvaluationFunction)) for part in parts)


class OwnMethod:
    """One call of a model's `fit` or `evaluate` that is not Keras's; `used` once it has come to Keras's."""

    def __init__(self, model: keras.Model, method: str, extras: Sequence[str]) -> None:
        owner = keras_models.overriding_class(model, method)
        self.by_library = owner is None
        patch = f"keras.Model.{method} of {keras_models.patched_by(model, method)}"
        self.name = patch if owner is None else f"{owner.__name__}.{method}"
        self.used = False
        self._model = model
        self._method = method
        self._extras = extras

    def call(self, ours: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the method; what it passes on to Keras's goes to `ours`."""

        def from_keras(*args: Any, **kwargs: Any) -> Any:
            if self.used and "resume" in self._extras:
                raise ValueError(
                    f"{self.name} calls keras.Model.fit more than once, and resume is for one training"
                )
            result = ours(*args, **kwargs)
            self.used = True
            return result

        with routes.Through(self._model, from_keras, name=self._method):
            result = getattr(self._model, self._method)(*args, **kwargs)
        if self._extras and not self.used:
            did = "has trained" if self._method == "fit" else "has evaluated"
            extras = " and ".join(self._extras)
            remedy = (
                "put Keras's method back" if self.by_library else f"call super().{self._method}(...) in it"
            )
            raise ValueError(
                f"{self.name} {did} by itself, without keras.Model.{self._method}, so that {extras} had no "
                f"effect; {remedy}, or leave that out"
            )
        return result
