"""`EpochOnly`: a callback without its hooks of batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from overlap_train._callbacks.state import capture, restore
from overlap_train._copies.kept import KeptState
from overlap_train._support.arguments import require_instance

__all__ = ["EpochOnly"]


class EpochOnly(keras.callbacks.Callback):  # type: ignore[misc]
    """Pass on to a callback what happens at the ends of epochs, and leave out the batches.

    For a callback whose hooks of batches you can do without, such as a logger that writes a line for each of
    them: it is then no reason to train step by step, or in step with the validation. It can be used with
    `keras.Model.fit` too. All methods are called on the thread that called `fit`.

    Attributes:
        callback: the callback that is called.
        takes_copies: says that `set_state` takes what `capture` has made.
    """

    takes_copies = True

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        """Wrap a callback.

        Args:
            callback: called at the beginnings and ends of trainings, epochs and validations.

        Raises:
            TypeError: it is no Keras callback.
        """
        require_instance("callback", callback, keras.callbacks.Callback, optional=False)
        super().__init__()
        self.callback = callback

    @property
    def overlap_safe(self) -> bool:
        """Whether the callback declares that it only watches."""
        return getattr(self.callback, "overlap_safe", False) is True

    def set_model(self, model: keras.Model) -> None:
        """Tells the callback its model."""
        super().set_model(model)
        self.callback.set_model(model)

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Tells the callback how many epochs and steps there will be."""
        super().set_params(params)
        self.callback.set_params(params)

    def get_state(self) -> dict[str, Any]:
        """Returns what the callback remembers, for checkpoints."""
        return dict(capture(self.callback).values)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `get_state` returned.

        Raises:
            CheckpointMismatchError: a variable of the callback has changed its shape.
        """
        restore(self.callback, KeptState(type(self.callback).__name__, dict(state)))

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Passes on that the training begins."""
        self.callback.on_train_begin(logs)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Passes on that the training has ended."""
        self.callback.on_train_end(logs)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Passes on that an epoch begins."""
        self.callback.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Passes on that an epoch has ended, with its logs."""
        self.callback.on_epoch_end(epoch, logs)

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Passes on that a validation begins."""
        self.callback.on_test_begin(logs)

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Passes on that a validation has ended, with its logs."""
        self.callback.on_test_end(logs)
