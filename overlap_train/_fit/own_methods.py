"""A `fit` or an `evaluate` that is not Keras's: the model's own, or what a library has put in its place.

It may call Keras's method, and so come back to the trainer, or train by itself; only calling it shows which.
Extras, which Keras cannot do, are never dropped: the first update of the model's weights that comes from
elsewhere is undone, and the call refused. All on the thread that called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train._keras import routes
from overlap_train._keras.optimizers import UnbuiltAgain, WeightListener
from overlap_train._snapshot import StateVariable, same_bits
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
        self._refusal: ValueError | None = None
        self._listener: WeightListener | None = None
        self._unbuilt: UnbuiltAgain | None = None
        self._before: dict[int, tuple[StateVariable, tf.Tensor]] = {}
        self._values: dict[int, tf.Tensor] = {}

    def call(self, ours: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the method; what it passes on to Keras's goes to `ours`."""

        def from_keras(*args: Any, **kwargs: Any) -> Any:
            if self.used and "resume" in self._extras:
                self._refuse(
                    f"{self.name} calls keras.Model.fit more than once, and resume is for one training"
                )
            self._stop_listening()
            result = ours(*args, **kwargs)
            self.used = True
            return result

        self._listen()
        try:
            with routes.Through(self._model, from_keras, name=self._method):
                result = getattr(self._model, self._method)(*args, **kwargs)
            if self._extras and not self.used:
                self._refuse_own_work()
            if self._refusal is not None:  # which the method has caught
                raise self._refusal
            return result
        except Exception:
            if self._refusal is None:
                raise
            raise self._refusal from None  # whatever has become of it on its way
        finally:
            self._stop_listening()

    def _was_set(self, variables: Sequence[keras.Variable]) -> None:
        self._values |= {id(variable): StateVariable.of_keras(variable).read() for variable in variables}

    def _was_used(self, variables: Sequence[keras.Variable]) -> None:
        for variable in variables:
            value = self._values.get(id(variable))
            if value is not None and not same_bits(value, StateVariable.of_keras(variable).read()):
                self._refuse_own_work()

    def _listen(self) -> None:
        if self._extras and self._method == "fit":
            model = self._model
            self._unbuilt = UnbuiltAgain(model)
            optimizer = getattr(model, "optimizer", None)
            momenta = () if optimizer is None else optimizer.variables
            for variable in (*model.variables, *momenta, *model.metrics_variables):
                state = StateVariable.of_keras(variable)
                self._before[id(variable)] = state, self._values.setdefault(id(variable), state.read())
            self._listener = WeightListener(model, self._was_set, self._was_used)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener, self._unbuilt, self._before, self._values = None, None, {}, {}

    def _refuse_own_work(self) -> NoReturn:
        """Puts the model back to where it stood before the call, and raises."""
        for state, value in self._before.values():
            state.assign(value)
        if self._unbuilt is not None:
            self._unbuilt.undo()
        does, extras = "trains" if self._method == "fit" else "evaluates", " and ".join(self._extras)
        remedy = "put Keras's method back" if self.by_library else f"call super().{self._method}(...) in it"
        self._refuse(
            f"{self.name} {does} by itself, without keras.Model.{self._method}, so that {extras} would be "
            f"ignored; {remedy}, or leave that out"
        )

    def _refuse(self, message: str) -> NoReturn:
        self._refusal = ValueError(message)
        raise self._refusal
