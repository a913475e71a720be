"""The hooks inside an epoch: called at once, or late for callbacks that cannot tell.

While an epoch waits for its validation, the next one is trained. A callback that only keeps and logs what it
is given gets its hooks of that next epoch after the `on_epoch_end` that they follow under Keras, and none of
an epoch that is taken back. So it sees the calls of `keras.Model.fit`, in their order. On the training
thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from overlap_train._callbacks.hook_doings import Reading
from overlap_train._callbacks.hooks import (
    can_be_late,
    notes_epochs_only,
    ordering_hooks,
    readings_inside,
)
from overlap_train._callbacks.listeners import own_hooks
from overlap_train._keras import metrics as keras_metrics

__all__ = ["EpochHooks", "late_callbacks"]


def late_callbacks(callbacks: Any, *, watched: bool) -> list[keras.callbacks.Callback]:
    """Returns those that have to be called late for the training to run ahead, and can be.

    Those that only note which epoch has begun are among them: somebody may look at what they note.

    Args:
        callbacks: a Keras `CallbackList`; none of one with hooks of its own, as these call them.
        watched: as for `can_be_late`.
    """
    found = [] if own_hooks(callbacks) else callbacks.callbacks
    late = [
        c for c in found if notes_epochs_only(c) or (ordering_hooks(c) and can_be_late(c, watched=watched))
    ]
    if len(found) == 1:
        return late
    inside = {id(c): readings_inside(c) for c in found if type(c) is not keras.callbacks.History}
    return [c for c in late if not _sets_for_others(id(c), inside)]


def _sets_for_others(one: int, inside: Mapping[int, tuple[Reading, Reading]]) -> bool:
    """Whether the hooks of a callback inside epochs set what has been relied upon of another one's."""
    sets = inside[one][0].sets | inside[one][1].sets
    others = [reading for key, readings in inside.items() if key != one for reading in readings]
    return any(sets & reading.relied_on for reading in others)


class EpochHooks:
    """Calls the hooks inside epochs.

    Args:
        callbacks: a Keras `CallbackList`, or one that several hosts share.
        late: those that are called late.
        waits: returns whether an earlier epoch has not been delivered yet.
    """

    def __init__(
        self, callbacks: Any, late: Sequence[keras.callbacks.Callback], waits: Callable[[], bool]
    ) -> None:
        self._callbacks = callbacks
        self._waits = waits
        self._late = late
        self._late_ids = frozenset(map(id, late))
        self._kept: deque[tuple[int, Callable[[], None]]] = deque()

    def epoch_begin(self, epoch: int) -> None:
        """Calls `on_epoch_begin`."""
        self._call(epoch, "on_epoch_begin", epoch, None)

    def batch_begin(self, epoch: int, batch: int) -> None:
        """Calls `on_train_batch_begin`."""
        self._call(epoch, "on_train_batch_begin", batch, None)

    def batch_end(self, epoch: int, batch: int, logs: Mapping[str, Any] | None) -> None:
        """Calls `on_train_batch_end`."""
        self._call(epoch, "on_train_batch_end", batch, logs)

    def release(self, epoch: int) -> None:
        """Calls what has been kept of the epochs up to one, whose predecessor has been delivered."""
        while self._kept and self._kept[0][0] <= epoch:
            self._kept.popleft()[1]()

    def drop(self) -> None:
        """Forgets what has been kept: the epochs are trained again, or never delivered."""
        self._kept.clear()

    def _call(self, epoch: int, hook: str, number: int, logs: Mapping[str, Any] | None) -> None:
        if not self._late or not self._waits():
            getattr(self._callbacks, hook)(number, logs)
            return
        values = keras_metrics.python_logs(logs)
        self._tell(
            [c for c in self._callbacks.callbacks if id(c) not in self._late_ids], hook, number, values
        )
        self._kept.append((epoch, lambda: self._tell(self._late, hook, number, values)))

    def _tell(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        hook: str,
        number: int,
        logs: dict[str, Any],
    ) -> None:
        """Calls a hook as a `CallbackList` does: with one dict for all, empty where there are no logs."""
        for callback in callbacks:
            if hook == "on_epoch_begin":
                callback.on_epoch_begin(number, logs)
            else:
                getattr(callback, hook)(number, logs=logs)
