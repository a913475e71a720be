"""Whether the same would be decided about the callbacks of a fit again.

The methods, functions and settings of a callback may be changed while a training runs, by itself or by other
code. So the decisions about it are checked after each hook that may do so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from overlap_train._callbacks.hooks import (
    TEST_BATCH_HOOKS,
    acts_in,
    asks_schedule,
    hook_that_waits,
    overrides,
    wants_test_batches,
    wants_train_batches,
)
from overlap_train._inspection.attributes import variables_of
from overlap_train._keras import models as keras_models


def require_stock_list(callbacks: Any) -> None:
    """Raise TypeError for a `CallbackList` that may run other code than Keras's around each hook."""
    stock = keras.callbacks.CallbackList
    methods = {name: m for name, m in vars(stock).items() if callable(m)}
    is_custom = isinstance(callbacks, stock) and (
        type(callbacks) is not stock or not methods.keys().isdisjoint(variables_of(callbacks))
    )
    if is_custom or not all(map(keras_models.is_stock_method, methods.values())):
        raise TypeError(
            "callbacks are called by a CallbackList that is not Keras's own; pass them in a list, and let a "
            "callback do what it did"
        )


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
        require_stock_list(self._callbacks)
        return [decide(each) for each in self._callbacks.callbacks for decide in self._decisions_on]
