"""The hooks inside epochs, called at once. Those that have to wait for a delivery are called by `late`.

On the training thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from overlap_train._callbacks.delivery import EpochBeginning
from overlap_train._snapshot import Values


class EpochHooks:
    """Calls the hooks inside epochs when the training comes to them."""

    def __init__(self, model: keras.Model, callbacks: Any) -> None:
        self._model = model
        self._callbacks = callbacks

    @property
    def has_begun(self) -> bool:
        """Whether an epoch that is still to be trained was begun by the delivery that took it back.

        No checkpoint holds that.
        """
        return False

    def begins(self, epoch: int) -> bool:
        """Whether the `on_epoch_begin` of an epoch is still to be called."""
        return False

    def epoch_begin(self, epoch: int) -> None:
        """Reset the metrics and call `on_epoch_begin`, or have it wait for the delivery before."""
        self._model.reset_metrics()
        self._callbacks.on_epoch_begin(epoch)

    def begin_late(self, trained: Values) -> EpochBeginning:
        """Call the first `on_epoch_begin` that waits; `trained` are the variables of its epoch."""
        return EpochBeginning({})

    def batch_begin(self, epoch: int, batch: int) -> None:
        """Call `on_train_batch_begin`."""
        self._call(epoch, "on_train_batch_begin", batch, None)

    def batch_end(self, epoch: int, batch: int, logs: Mapping[str, Any] | None) -> None:
        """Call `on_train_batch_end`."""
        self._call(epoch, "on_train_batch_end", batch, logs)

    def release(self, epoch: int) -> None:
        """Call the hooks that wait of the epochs up to one, whose predecessor has been delivered."""

    def drop(self) -> None:
        """Forget the hooks that wait: the epochs are trained again, or never delivered."""

    def _call(self, epoch: int, hook: str, number: int, logs: Mapping[str, Any] | None) -> None:
        getattr(self._callbacks, hook)(number, logs)
