"""Which callbacks listen to which hooks, and what that allows the training to do.

The loop may group steps only while no callback listens to batches, and the training may run ahead of its
validation only while no hook has to be called between two of its steps. Of Keras's own callbacks and those of
some libraries it is known what they do (`libraries`). Hooks of other callbacks are assumed to do anything,
unless they merely note their arguments (`notes`) or the callback declares `overlap_safe = True`. Such a
callback may end the training, but changes nothing else of it; its hooks inside an epoch may be called for an
epoch that is taken back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from overlap_train._callbacks.libraries import (
    calls_own_methods,
    has_own_functions,
    is_idle,
    knowledge_of,
    only_watches,
)
from overlap_train._callbacks.notes import only_computes, only_notes
from overlap_train._inspection.attributes import variables_of
from overlap_train._keras import models as keras_models
from overlap_train.options.epoch_only import EpochOnly

TRAIN_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
TEST_BATCH_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
TEST_HOOKS = ("on_test_begin", *TEST_BATCH_HOOKS, "on_test_end")
EVERY_HOOK = (
    *("on_train_begin", "on_epoch_begin", *TRAIN_BATCH_HOOKS, "on_epoch_end", *TEST_HOOKS, "on_train_end"),
)
# Of Keras's own, those whose `on_epoch_begin` may be called twice.
_BEGINNING_AGAIN: tuple[Any, ...] = (
    *(keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint, keras.callbacks.TensorBoard),
)


def overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Whether a callback has a method of its own for `hook`, in its class or in the instance."""
    if hook in variables_of(callback) or _answers_itself(callback):
        return True
    empty = getattr(keras.callbacks.Callback, hook)
    if not keras_models.is_stock_method(empty):
        return True  # put into Keras's own class, for all callbacks
    return getattr(type(callback), hook, None) is not empty


def heard(callback: keras.callbacks.Callback, hooks: Iterable[str]) -> list[str]:
    """Return those of the hooks that a callback overrides, or the one in an `EpochOnly`."""
    inner, hooks = _within(callback, hooks)
    return [hook for hook in hooks if overrides(inner, hook)]


def listens(callbacks: Iterable[keras.callbacks.Callback], *hooks: str) -> bool:
    """Whether any of the callbacks overrides any of the hooks."""
    return any(overrides(callback, hook) for callback in callbacks for hook in hooks)


def looks_at_model(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may see or change the model at an epoch's end or around a validation."""
    return not _is_history(callback) and listens([callback], "on_epoch_end", *TEST_HOOKS)


def wants_train_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback has to be called around each training step."""
    return bool(_acting(callback, TRAIN_BATCH_HOOKS))


def wants_test_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback has to be called around each validation step."""
    return bool(_acting(callback, TEST_BATCH_HOOKS))


def may_wait(callbacks: Iterable[keras.callbacks.Callback]) -> bool:
    """Whether any of the callbacks has a hook inside epochs that may have to be called late."""
    return any(overrides(each, "on_epoch_begin") or wants_train_batches(each) for each in callbacks)


def acts_in(callback: keras.callbacks.Callback, hooks: Iterable[str]) -> bool:
    """Whether a callback may do something in some hooks that has to take effect in time."""
    if is_declared_safe(callback):
        return False
    inner, hooks = _within(callback, hooks)
    # Keras traces a first validation behind these two.
    before = ("on_test_begin", "on_test_batch_begin")
    return not all(_only_notes(inner, [hook], apart=hook in before) for hook in _acting(inner, hooks))


def runs_own_code(callback: keras.callbacks.Callback, hooks: Iterable[str]) -> bool:
    """Whether the user's code runs in one of some hooks, if only to note something."""
    inner, hooks = _within(callback, hooks)
    return not is_declared_safe(callback) and not _is_a_library_s(inner, _acting(inner, hooks))


def hook_that_waits(
    callback: keras.callbacks.Callback, *, watched: bool = False, late: bool = True
) -> str | None:
    """Return the hook that has to be called between steps, so that no epoch may begin ahead of it; or None.

    `watched` says that the user's code makes data or validates, and may look at the state of other code. If
    hooks cannot be called `late`, those of Keras's own callbacks can still be called twice.
    """
    if is_declared_safe(callback):
        return None
    callback, hooks = _within(callback, [*TRAIN_BATCH_HOOKS, "on_epoch_begin"])
    inside = _acting(callback, hooks)
    if not late:
        inside = [h for h in inside if h != "on_epoch_begin" or not _may_begin_again(callback)]
        return inside[0] if inside else None
    if watched and not _is_a_library_s(callback, inside):
        return inside[0]
    batches = [hook for hook in inside if hook != "on_epoch_begin"]
    return None if _only_notes(callback, batches) else batches[0]


def may_change_training(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may have the training go on from an epoch's end otherwise, other than by ending it.

    The user's code may also change what a generator yields, so only callbacks of libraries are trusted.
    """
    if is_declared_safe(callback) or _is_history(callback):
        return False
    callback, hooks = _within(callback, EVERY_HOOK)
    if not only_watches(callback) or calls_own_methods(callback) or has_own_functions(callback):
        return True
    return not _is_a_library_s(callback, [hook for hook in hooks if overrides(callback, hook)])


def acts_on_model_only(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is Keras's own and cannot change what Python makes the data from."""
    callback, hooks = _within(callback, EVERY_HOOK)
    if _is_history(callback):
        return True
    if not (keras_models.is_stock_method(type(callback)) and _is_stock(callback, hooks)):
        return False
    if calls_own_methods(callback):
        return False
    return not isinstance(callback, keras.callbacks.LearningRateScheduler) or asks_schedule(callback)


def asks_schedule(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback sets learning rates by a schedule that may be asked once more than under Keras."""
    scheduler = isinstance(callback, keras.callbacks.LearningRateScheduler)
    return scheduler and _is_stock(callback, ("on_epoch_begin",)) and only_computes(callback.schedule)


def is_declared_safe(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback says that it only watches: `overlap_safe = True`, on its class or on itself."""
    return getattr(callback, "overlap_safe", False) is True


def _within(callback: Any, hooks: Iterable[str]) -> tuple[Any, list[str]]:
    """Return the callback and the hooks that are called: those of the callback in an `EpochOnly`."""
    hooks = list(hooks)
    while isinstance(callback, EpochOnly):
        callback, hooks = callback.callback, [hook for hook in hooks if "batch" not in hook]
    return callback, hooks


def _acting(callback: keras.callbacks.Callback, hooks: Iterable[str]) -> list[str]:
    """Return those of the hooks that a callback overrides, and does something in."""
    heard = [hook for hook in hooks if overrides(callback, hook)]
    return heard if _answers_itself(callback) else [hook for hook in heard if not is_idle(callback, hook)]


def _only_notes(callback: keras.callbacks.Callback, hooks: Iterable[str], *, apart: bool = False) -> bool:
    unknown = [hook for hook in hooks if knowledge_of(callback, hook) is None]
    return not unknown or (not _answers_itself(callback) and only_notes(callback, unknown, apart=apart))


def _is_a_library_s(callback: keras.callbacks.Callback, hooks: Iterable[str]) -> bool:
    """Whether hooks are Keras's own or those of a library in the table, and run no function of the user."""
    if isinstance(callback, keras.callbacks.LearningRateScheduler) and not asks_schedule(callback):
        return not any(hooks)
    return all(_is_stock(callback, [hook]) or knowledge_of(callback, hook) is not None for hook in hooks)


def _may_begin_again(callback: keras.callbacks.Callback) -> bool:
    """Whether `on_epoch_begin` may be called before its turn, and again for an epoch that is taken back."""
    if not _is_stock(callback, ("on_epoch_begin",)):
        return False
    if isinstance(callback, keras.callbacks.SwapEMAWeights):
        return not callback.swap_on_epoch
    return isinstance(callback, _BEGINNING_AGAIN) or asks_schedule(callback)


def _is_history(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is the history that each fit has, which only keeps logs."""
    return type(callback) is keras.callbacks.History and _is_stock(callback, EVERY_HOOK)


def _is_stock(callback: keras.callbacks.Callback, hooks: Iterable[str]) -> bool:
    """Whether a callback's hooks are Keras's own, not a subclass's."""
    return not _answers_itself(callback) and all(
        hook not in variables_of(callback)
        and keras_models.is_stock_method(getattr(type(callback), hook, None))
        for hook in hooks
    )


def _answers_itself(callback: keras.callbacks.Callback) -> bool:
    """Whether the class of a callback computes its attributes, its hooks among them."""
    return getattr(type(callback), "__getattribute__", None) is not object.__getattribute__
