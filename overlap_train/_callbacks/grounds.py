"""What has been decided about callbacks by their code and settings, and whether it would be decided again.

A callback may be given other methods, hold other functions or be set otherwise while a training runs, by
itself or by anybody else. So it is looked at again after each hook that may do so.
"""

from __future__ import annotations

from typing import Any

import keras

from overlap_train._callbacks.hooks import (
    is_declared_safe,
    ordering_hooks,
    overrides,
    readings_inside,
    wants_test_batches,
    wants_train_batches,
)
from overlap_train._callbacks.purity import is_pure, looked_up

__all__ = ["Grounds"]

_HOOKS = ("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_test_batch_begin")
_INSIDE = (*_HOOKS, "on_test_batch_end", "on_batch_begin", "on_batch_end")


class Grounds:
    """The grounds for how callbacks are called. On the training thread.

    Args:
        callbacks: a Keras `CallbackList`.
    """

    def __init__(self, callbacks: Any) -> None:
        self._callbacks = callbacks
        self._found = self._look()

    def hold(self) -> bool:
        """Whether looking again finds the same."""
        return self._look() == self._found

    def _look(self) -> list[Any]:
        return [_grounds_of(callback) for callback in self._callbacks.callbacks]


def _grounds_of(callback: keras.callbacks.Callback) -> Any:
    if type(callback) is keras.callbacks.History or not any(overrides(callback, hook) for hook in _INSIDE):
        return id(callback)
    inside, begins = readings_inside(callback)
    schedule = getattr(callback, "schedule", None)
    return (
        id(callback),
        type(callback),
        is_declared_safe(callback),
        wants_train_batches(callback),
        wants_test_batches(callback),
        ordering_hooks(callback),
        (inside.doing, inside.users, begins.doing, begins.users),
        looked_up(schedule) if schedule is not None and is_pure(schedule) else None,
    )
