"""How callbacks are called, and whether it would be decided so again.

A callback may be given other methods, hold other functions or be set otherwise while a training runs, by
itself or by anybody else. So it is asked again after each hook that may do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from overlap_train._callbacks.hooks import (
    acts_in_test_batches,
    asks_schedule,
    hook_that_waits,
    may_set_before_tests,
    wants_test_batches,
    wants_train_batches,
)
from overlap_train._callbacks.listeners import own_hooks

__all__ = ["Grounds"]


class Grounds:
    """What has been decided about callbacks. On the training thread.

    `set_since` returns what callbacks have set of what has been traced, or None.
    """

    def __init__(
        self,
        callbacks: Any,
        waiting_hook: Callable[[keras.callbacks.Callback], str | None] = hook_that_waits,
        set_since: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._callbacks = callbacks
        self._waiting_hook = waiting_hook
        self._set_since = set_since
        self._given_up: str | None = None
        self._decided = self._decide()

    def changed(self) -> str | None:
        """Return what is otherwise now, in words; None if the same would be decided again."""
        if self._given_up is not None:
            return self._given_up
        place = self._set_since()
        if place is not None:
            return f"{place} was set, with which the validation computes its metrics"
        if self._decide() != self._decided:
            return "callbacks have other methods, functions or settings than before"
        return None

    def give_up(self, reason: str) -> None:
        """Have them hold no more, for a reason in words."""
        self._given_up = reason

    def _decide(self) -> list[Any]:
        return [own_hooks(self._callbacks), *map(self._decide_on, self._callbacks.callbacks)]

    def _decide_on(self, callback: keras.callbacks.Callback) -> tuple[Any, ...]:
        return (
            id(callback),
            asks_schedule(callback),
            wants_train_batches(callback),
            wants_test_batches(callback),
            acts_in_test_batches(callback),
            may_set_before_tests(callback),
            self._waiting_hook(callback),
        )
