"""The hooks inside epochs, called at once. Those that may have to wait for a delivery are called by `late`.

On the training thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from overlap_train._callbacks.delivery import BeginNext


class EpochHooks:
    """Calls the hooks inside epochs when the training comes to them; `LateHooks` may have them wait."""

    def __init__(self, model: keras.Model, callbacks: Any) -> None:
        self._model = model
        self._callbacks = callbacks

    @property
    def has_begun(self) -> bool:
        """Whether a delivery took back an epoch that it had begun; no checkpoint holds that."""
        return False

    def begins_late(self, epoch: int) -> BeginNext | None:
        """Return what calls the `on_epoch_begin` of an epoch with its variables, if that is still to come."""
        return None

    def epoch_begin(self, epoch: int) -> None:
        """Reset the metrics and call `on_epoch_begin`."""
        self._model.reset_metrics()
        self._callbacks.on_epoch_begin(epoch)

    def batch(self, epoch: int, hook: str, number: int, logs: Mapping[str, Any] | None = None) -> None:
        """Call `on_train_batch_begin` or `on_train_batch_end`."""
        getattr(self._callbacks, hook)(number, logs)

    def release(self, epoch: int) -> None:
        """Call the hooks that wait of the epochs up to one, whose predecessor has been delivered."""

    def drop(self) -> None:
        """Forget the hooks that wait: the epochs are trained again, or never delivered."""
