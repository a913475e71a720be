"""Who listens to a fit, and whether the same would be decided about them again.

Keras calls the hooks of a `CallbackList`, which pass their arguments on to its callbacks. A list of a custom
class, one with a method set on itself, and a method that has been replaced in Keras's class may do anything
else as well. So such a list counts as one more callback, which acts in every hook.

The methods, functions and settings of a callback may be changed while a training runs, by itself or by other
code. So the decisions about it are checked after each hook that may do so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from overlap_train._callbacks.hooks import (
    EVERY_HOOK,
    TEST_BATCH_HOOKS,
    acts_in,
    asks_schedule,
    hook_that_waits,
    overrides,
    wants_test_batches,
    wants_train_batches,
)
from overlap_train._inspection.code import variables_of
from overlap_train._keras import models as keras_models

_UNREADABLE = object()


def listeners(callbacks: Any) -> list[Any]:
    """Return the callbacks of a list, behind a stand-in for the list if that may act itself."""
    members = list(callbacks.callbacks)
    if not is_custom(callbacks):
        return members
    stand_in: Any = _stand_in(type(callbacks).__name__)()
    stand_in.overlap_safe = getattr(callbacks, "overlap_safe", False)
    return [stand_in, *members]


def is_custom(callbacks: Any) -> bool:
    """Whether a list may run other code than Keras's, found without running any; that of hosts never does."""
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return False
    methods = {name: m for name, m in vars(keras.callbacks.CallbackList).items() if callable(m)}
    return (
        type(callbacks) is not keras.callbacks.CallbackList
        or not all(map(keras_models.is_stock_method, methods.values()))
        or not methods.keys().isdisjoint(variables_of(callbacks))
    )


def remembering(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Return what may remember something: the callbacks of a list, and the list if its class is custom."""
    is_of_class = isinstance(callbacks, keras.callbacks.CallbackList)
    has_own_class = is_of_class and not keras_models.is_stock_method(type(callbacks))
    return [*callbacks.callbacks, callbacks] if has_own_class else list(callbacks.callbacks)


@functools.lru_cache(maxsize=64)
def _stand_in(name: str) -> type[keras.callbacks.Callback]:
    """Return the class of the stand-in for a list, named as that of the list; nothing calls its hooks."""
    return type(name, (keras.callbacks.Callback,), dict.fromkeys(EVERY_HOOK, _UNREADABLE))


class Grounds:
    """The decisions about callbacks. On the training thread.

    `changed_metric` returns what has changed of the metrics since they were traced, or None.
    """

    def __init__(
        self,
        callbacks: Any,
        waiting_hook: Callable[[keras.callbacks.Callback], str | None] = hook_that_waits,
        changed_metric: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._callbacks = callbacks
        self._decisions_on = (
            *(id, asks_schedule, wants_train_batches, wants_test_batches, waiting_hook),
            functools.partial(acts_in, hooks=TEST_BATCH_HOOKS),
            functools.partial(acts_in, hooks=["on_test_begin"]),
            functools.partial(overrides, hook="on_epoch_begin"),
        )
        self._changed_metric = changed_metric
        self._decisions = self._decide()

    def changed(self) -> str | None:
        """Return what has changed, in words; None if the same would be decided again."""
        setting = self._changed_metric()
        if setting is not None:
            return f"{setting} was set, with which metrics are computed"
        if self._decide() != self._decisions:
            return "callbacks have other methods, functions or settings than before"
        return None

    def _decide(self) -> list[Any]:
        decisions = [decide(each) for each in self._callbacks.callbacks for decide in self._decisions_on]
        return [is_custom(self._callbacks), *decisions]
