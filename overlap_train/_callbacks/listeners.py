"""Who listens to a fit, and whether the same would be decided about them again.

Keras calls the hooks of a `CallbackList`, which pass on what they are given. A list of the user's own class,
one with a hook set on itself, and a hook that has been replaced in Keras's class may do anything besides.
Such hooks count as those of one more callback, whose code cannot be read.

A callback may be given other methods, hold other functions or be set otherwise while a training runs, by
itself or by other code. So it is asked again after each hook that may do so.
"""

from __future__ import annotations

import functools
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
from overlap_train._callbacks.state import is_keras
from overlap_train._inspection.code import variables_of
from overlap_train._keras import models as keras_models

__all__ = ["Grounds", "listeners", "own_hooks", "remembering"]


_HOOKS = (
    *("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"),
    *("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end", "on_train_end"),
)
# What hooks of Keras's list call and read besides; whoever replaces one may act in all of them.
_WITHIN = ("callbacks", "_async_dispatch", "_flush_futures", "_on_begin", "_on_end", "__getattribute__")
_UNREADABLE = object()


def listeners(callbacks: Any) -> list[Any]:
    """Return what stands for a list, if it has hooks of its own, and then its callbacks."""
    members, hooks = list(callbacks.callbacks), own_hooks(callbacks)
    return [_stand_in(type(callbacks).__name__)(callbacks, hooks), *members] if hooks else members


def own_hooks(callbacks: Any) -> tuple[str, ...]:
    """Return the hooks of a list that run other code than Keras's; one that several hosts share has none."""
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return ()
    if any(_is_replaced(callbacks, name) for name in _WITHIN):
        return _HOOKS
    found = {hook for hook in _HOOKS if any(_is_replaced(callbacks, name) for name in (hook, f"_{hook}"))}
    if "on_test_begin" in found:
        found.add("on_test_batch_begin")  # it may end the validation, which is obeyed between batches
    return tuple(hook for hook in _HOOKS if hook in found)


def remembering(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Return who may remember something: the callbacks of a list, and a list of the user's class itself."""
    listed = isinstance(callbacks, keras.callbacks.CallbackList) and not is_keras(type(callbacks))
    return [*callbacks.callbacks, callbacks] if listed else list(callbacks.callbacks)


class _OwnHooks(keras.callbacks.Callback):  # type: ignore[misc]
    """Stands for a list with hooks of its own where it is asked who listens; it is not called."""

    def __init__(self, listed: keras.callbacks.CallbackList, hooks: tuple[str, ...]) -> None:
        super().__init__()
        self.listed = listed
        self.overlap_safe = getattr(listed, "overlap_safe", False)
        for hook in hooks:
            setattr(self, hook, _UNREADABLE)


@functools.lru_cache(maxsize=64)
def _stand_in(name: str) -> type[_OwnHooks]:
    """Return the class of what stands for a list, by whose name messages call it."""
    return type(name, (_OwnHooks,), {})


def _is_replaced(listed: keras.callbacks.CallbackList, name: str) -> bool:
    """Whether something else than what Keras made is found under a name of a list, without running it."""
    if name == "callbacks":  # which Keras sets on the list itself
        return hasattr(type(listed), name)
    if name == "__getattribute__":
        return getattr(type(listed), name) is not object.__getattribute__
    if name in variables_of(listed):
        return True
    found = getattr(type(listed), name, None)
    return found is not None and not keras_models.is_stock_method(found)


class Grounds:
    """What has been decided about callbacks. On the training thread.

    `changed_metric` returns the setting of a metric that is another than when that was traced, or None.
    """

    def __init__(
        self,
        callbacks: Any,
        waiting_hook: Callable[[keras.callbacks.Callback], str | None] = hook_that_waits,
        changed_metric: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._callbacks = callbacks
        self._waiting_hook = waiting_hook
        self._changed_metric = changed_metric
        self._decided = self._decide()

    def changed(self) -> str | None:
        """Return what is otherwise now, in words; None if the same would be decided again."""
        setting = self._changed_metric()
        if setting is not None:
            return f"{setting} was set, with which the validation computes its metrics"
        if self._decide() != self._decided:
            return "callbacks have other methods, functions or settings than before"
        return None

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
