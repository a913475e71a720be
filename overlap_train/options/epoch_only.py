"""`EpochOnly`: a callback without its hooks of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from overlap_train._support.arguments import require_instance


def _passed_on(hook: str) -> Callable[..., None]:
    """Return the method that calls this hook of the wrapped callback."""

    def call(self: EpochOnly, *arguments: Any, **logs: Any) -> None:
        getattr(self.callback, hook)(*arguments, **logs)

    call.__name__, call.__doc__ = hook, f"Pass on `{hook}`."
    return call


class EpochOnly(keras.callbacks.Callback):  # type: ignore[misc]
    """Wrap a callback and leave out its batch hooks; all other hooks are passed on.

    Use it for a callback whose batch hooks you can do without, such as a logger that writes a line for each
    batch. The training then need not run step by step, or in step with its validation. It also works with
    `keras.Model.fit`. All methods are called on the thread that called `fit`.

    Attributes:
        callback: the wrapped callback. A checkpoint holds what it remembers.
    """

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        """Wrap a callback.

        Args:
            callback: called at the beginnings and ends of trainings, epochs, validations and predictions.

        Raises:
            TypeError: `callback` is not a Keras callback.
        """
        require_instance("callback", callback, keras.callbacks.Callback, optional=False)
        super().__init__()
        self.callback = callback

    @property
    def overlap_safe(self) -> bool:
        """Whether the callback declares that it only watches."""
        return getattr(self.callback, "overlap_safe", False) is True

    @property
    def on_all_hosts(self) -> bool:
        """Whether the callback is called on all hosts."""
        return getattr(self.callback, "on_all_hosts", False) is True

    @property
    def on_step_validation(self) -> Callable[..., None] | None:
        """The callback's own, if it takes the results of validations inside epochs."""
        listener: Callable[..., None] | None = getattr(self.callback, "on_step_validation", None)
        return listener

    def set_model(self, model: keras.Model) -> None:
        """Pass the model to the callback."""
        super().set_model(model)
        self.callback.set_model(model)

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Pass the numbers of epochs and steps to the callback."""
        super().set_params(params)
        self.callback.set_params(params)

    on_train_begin = _passed_on("on_train_begin")
    on_train_end = _passed_on("on_train_end")
    on_epoch_begin = _passed_on("on_epoch_begin")
    on_epoch_end = _passed_on("on_epoch_end")
    on_test_begin = _passed_on("on_test_begin")
    on_test_end = _passed_on("on_test_end")
    on_predict_begin = _passed_on("on_predict_begin")
    on_predict_end = _passed_on("on_predict_end")
