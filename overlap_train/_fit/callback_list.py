"""The callbacks of a `fit` or an `evaluate`, and what they listen to."""

from __future__ import annotations

from typing import Any

import keras

from overlap_train._callbacks.hooks import wants_test_batches
from overlap_train._callbacks.listeners import listeners

__all__ = ["listened_to", "make_callback_list"]


def make_callback_list(
    model: keras.Model,
    callbacks: Any,
    *,
    verbose: int | str,
    epochs: int,
    steps: int | None,
    history: bool = True,
) -> keras.callbacks.CallbackList:
    """Returns the user's callbacks as Keras would call them; a list of the user's own as it is."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=history,
        add_progbar=False,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )


def listened_to(callbacks: keras.callbacks.CallbackList) -> bool:
    """Whether a callback listens to the batches of a validation."""
    return any(map(wants_test_batches, listeners(callbacks)))
