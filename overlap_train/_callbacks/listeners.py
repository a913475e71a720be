"""Who listens to a fit, and whether the same would be decided about them again.

Keras calls the hooks of a `CallbackList`, which pass their arguments on to its callbacks. A list of a custom
class, one with a hook set on itself, and a hook that has been replaced in Keras's class may do anything else
as well. Such hooks count as those of one more callback, whose code cannot be read.

The methods, functions and settings of a callback may be changed while a training runs, by itself or by other
code. So the decisions about it are checked after each hook that may do so.
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

_HOOKS = (
    *("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"),
    *("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end", "on_train_end"),
)
# What all hooks of Keras's list call and read; who replaces one of these may act in each hook.
_WITHIN = ("callbacks", "_async_dispatch", "_flush_futures", "_on_begin", "_on_end", "__getattribute__")
_UNREADABLE = object()


def listeners(callbacks: Any) -> list[Any]:
    """Return the callbacks of a list, behind a stand-in for the list if that has hooks of its own."""
    members, hooks = list(callbacks.callbacks), own_hooks(callbacks)
    return [_stand_in(type(callbacks).__name__)(callbacks, hooks), *members] if hooks else members


def own_hooks(callbacks: Any) -> tuple[str, ...]:
    """Return the hooks of a list that run other code than Keras's; one that several hosts share has none."""
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return ()
    if any(_is_replaced(callbacks, name) for name in _WITHIN):
        return _HOOKS
    hooks = {hook for hook in _HOOKS if any(_is_replaced(callbacks, name) for name in (hook, f"_{hook}"))}
    if "on_test_begin" in hooks:
        hooks.add("on_test_batch_begin")  # it may end the validation, which is obeyed between batches
    return tuple(hook for hook in _HOOKS if hook in hooks)


def remembering(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Return what may remember something: the callbacks of a list, and the list if its class is custom."""
    is_custom = isinstance(callbacks, keras.callbacks.CallbackList) and not is_keras(type(callbacks))
    return [*callbacks.callbacks, callbacks] if is_custom else list(callbacks.callbacks)


class _OwnHooks(keras.callbacks.Callback):  # type: ignore[misc]
    """Stands for a list with hooks of its own among the listeners; its hooks are not called."""

    def __init__(self, listed: keras.callbacks.CallbackList, hooks: tuple[str, ...]) -> None:
        super().__init__()
        self.listed = listed
        self.overlap_safe = getattr(listed, "overlap_safe", False)
        for hook in hooks:
            setattr(self, hook, _UNREADABLE)


@functools.lru_cache(maxsize=64)
def _stand_in(name: str) -> type[_OwnHooks]:
    """Return the class of the stand-in for a list; messages show its name, which is that of the list's."""
    return type(name, (_OwnHooks,), {})


def _is_replaced(listed: keras.callbacks.CallbackList, name: str) -> bool:
    """Whether a list has anything but Keras's own under a name, found without running any code."""
    if name == "callbacks":  # which Keras sets on the list itself
        return hasattr(type(listed), name)
    if name == "__getattribute__":
        return getattr(type(listed), name) is not object.__getattribute__
    if name in variables_of(listed):
        return True
    member = getattr(type(listed), name, None)
    return member is not None and not keras_models.is_stock_method(member)


class Grounds:
    """The decisions about callbacks. On the training thread.

    `changed_metric` returns a setting of a metric that has changed since the metric was traced, or None.
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
        self._decisions = self._decide()

    def changed(self) -> str | None:
        """Return what has changed, in words; None if the same would be decided again."""
        setting = self._changed_metric()
        if setting is not None:
            return f"{setting} was set, with which the validation computes its metrics"
        if self._decide() != self._decisions:
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
