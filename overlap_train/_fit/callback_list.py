"""The callbacks of a `fit` or an `evaluate`, and what they listen to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from overlap_train._callbacks.grounds import require_stock_list
from overlap_train._callbacks.hooks import wants_test_batches
from overlap_train._support.arguments import short_repr


def require_callbacks(callbacks: Any) -> None:
    """Raises TypeError for what Keras could not call as a callback, and for a custom list."""
    require_stock_list(callbacks)
    if isinstance(callbacks, keras.callbacks.CallbackList) or not callbacks:
        return
    for each in keras.tree.flatten(callbacks):
        if isinstance(each, type) and issubclass(each, keras.callbacks.Callback):
            name = each.__name__
            raise TypeError(f"callbacks must be objects; got the class {name}: write {name}(...)")
        if not hasattr(each, "set_model"):
            raise TypeError(
                f"callbacks must be keras.callbacks.Callback objects; got {short_repr(each)}; a function "
                "goes into keras.callbacks.LambdaCallback"
            )


def make_callback_list(
    model: keras.Model,
    callbacks: Any,
    *,
    verbose: int | str,
    epochs: int,
    steps: int | None,
    history: bool = True,
    bar: bool = False,
) -> keras.callbacks.CallbackList:
    """Returns the user's callbacks as Keras would call them, with a bar or not; a `CallbackList` as it is."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=history,
        add_progbar=bar,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )


def listened_to(callbacks: keras.callbacks.CallbackList) -> bool:
    """Whether a callback listens to the batches of a validation."""
    return any(map(wants_test_batches, callbacks.callbacks))


class ResultLine:
    """What `keras.Model.evaluate` has printed when it ends, unless a callback shows a bar itself."""

    def __init__(self, callbacks: Any, verbose: int | str) -> None:
        is_list = isinstance(callbacks, keras.callbacks.CallbackList)
        has_bar = is_list or any(
            isinstance(callback, keras.callbacks.ProgbarLogger) for callback in keras.tree.flatten(callbacks)
        )
        self._bar = None if has_bar or verbose == 0 else keras.callbacks.ProgbarLogger()
        if self._bar is not None:
            self._bar.set_params({"verbose": verbose, "epochs": 1, "steps": None})
            self._bar.on_test_begin()  # which starts its clock

    def show(self, logs: Mapping[str, Any], steps: int | None, seen: int) -> None:
        """Prints the result."""
        if self._bar is None:
            return
        self._bar.target, self._bar.seen = steps, seen
        self._bar.progbar.target = steps
        self._bar.on_test_end(logs)
