"""A `fit` or an `evaluate` that is not Keras's: the model's own, or what a library has put in its place.

It may call Keras's method, and so come back to the trainer, or train by itself; only calling it shows which.
If it has trained by itself, extras that Keras cannot do have had no effect, and an error behind it says so.
The model keeps what it has learned. All on the thread that called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overlap_train._keras import models as keras_models
from overlap_train._keras import routes
from overlap_train._training.settings import TrainerSettings


class OwnMethod:
    """One call of a model's `fit` or `evaluate` that is not Keras's; `used` once it has come to Keras's."""

    def __init__(self, settings: TrainerSettings, method: str, resume: Any = None) -> None:
        model = settings.model
        owner = keras_models.overriding_class(model, method)
        self.by_library = owner is None
        patch = f"keras.Model.{method} of {keras_models.patched_by(model, method)}"
        self.name = patch if owner is None else f"{owner.__name__}.{method}"
        self.used = False
        self._model = model
        self._method = method
        self._extras = settings.beyond_keras(resume, trains=method == "fit")

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
