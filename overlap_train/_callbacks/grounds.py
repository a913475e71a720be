"""What has been decided about callbacks by their code and settings, and whether it would be decided again.

A callback may be given other methods, hold other functions or be set otherwise while a training runs, by
itself or by anybody else. So it is looked at again after each hook that may do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from overlap_train._callbacks.facts import Fact, all_hold
from overlap_train._callbacks.hooks import (
    ordering_hooks,
    readings_inside,
    readings_of,
    wants_test_batches,
    wants_train_batches,
)
from overlap_train._callbacks.listeners import own_hooks
from overlap_train._callbacks.purity import is_pure, looked_up
from overlap_train._inspection.lookup import look_up

__all__ = ["Grounds"]

_TEST = ("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end")
_INSIDE = ("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
# Settings of Keras's own callbacks that say when they are to be called.
_SETTINGS = ("schedule", "save_freq", "update_freq", "overlap_safe", "swap_on_epoch", "callback")


class Grounds:
    """The grounds for how callbacks are called. On the training thread.

    Args:
        callbacks: a Keras `CallbackList`.
        set_since: returns what callbacks have set of what has been traced, or None.
    """

    def __init__(self, callbacks: Any, set_since: Callable[[], str | None] = lambda: None) -> None:
        self._callbacks = callbacks
        self._set_since = set_since
        self._given_up: str | None = None
        self._decided = self._decide()
        self._take()

    def changed(self) -> str | None:
        """Returns what is otherwise now, in words; None if the same would be decided again."""
        place = self._set_since()
        if place is not None and self._given_up is None:
            return f"{place} was set, with which the validation computes its metrics"
        if self._given_up is not None or (self._looks_same() and all_hold(self._facts)):
            return self._given_up
        if self._decide() != self._decided:
            return "callbacks have other methods, functions or settings than before"
        self._take()
        return None

    def give_up(self, reason: str) -> None:
        """Has them hold no more, for a reason in words."""
        self._given_up = reason

    def _take(self) -> None:
        """Notes what the decisions follow from."""
        self._looks = self._seen()
        self._facts: list[Fact] = []
        for callback in self._callbacks.callbacks:
            self._facts += [fact for reading in readings_of(callback) for fact in reading.facts]

    def _looks_same(self) -> bool:
        seen = self._seen()
        return len(seen) == len(self._looks) and all(
            len(new) == len(old) and all(map(_is_same, new, old))
            for new, old in zip(seen, self._looks, strict=True)
        )

    def _seen(self) -> list[Any]:
        of_list = (type(self._callbacks), *own_hooks(self._callbacks))
        return [of_list, *(_seen_of(callback) for callback in self._callbacks.callbacks)]

    def _decide(self) -> list[Any]:
        of_list = own_hooks(self._callbacks)
        return [of_list, *(_decided_of(callback) for callback in self._callbacks.callbacks)]


def _seen_of(callback: keras.callbacks.Callback) -> tuple[Any, ...]:
    """Returns what is quickly seen of a callback."""
    found = [look_up(callback, name) for name in (*_INSIDE, *_TEST, *_SETTINGS, "__getattribute__")]
    schedule = getattr(callback, "schedule", None)
    looked = looked_up(schedule) if schedule is not None and is_pure(schedule) else ()
    return (callback, type(callback), *found, *looked)


def _is_same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) is str and left == right)


def _decided_of(callback: keras.callbacks.Callback) -> tuple[Any, ...]:
    inside, begins = readings_inside(callback)
    schedule = getattr(callback, "schedule", None)
    return (
        id(callback),
        wants_train_batches(callback),
        wants_test_batches(callback),
        ordering_hooks(callback),
        (inside.doing, inside.users, begins.doing, begins.users),
        looked_up(schedule) if schedule is not None and is_pure(schedule) else None,
    )
