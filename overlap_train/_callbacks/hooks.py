"""Who listens to what, and what that allows the training to do.

The loop may group steps only while nobody listens to batches, and it may run ahead of the validation only
while a rollback cannot be noticed: a hook that runs inside an epoch would run again for an epoch that is
trained again. Keras's own callbacks are known here one by one. Of any other the code says what its hooks do
(`hook_doings`), unless it declares `overlap_safe = True`: then its hooks inside an epoch may be called for an
epoch that is taken back and trained again, and it changes nothing of the training but to end it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.hook_doings import Reading, read_hooks
from overlap_train._callbacks.leads import has_own_functions
from overlap_train._callbacks.purity import is_pure
from overlap_train._inspection.lookup import variables_of
from overlap_train._inspection.sources import EVERYTHING
from overlap_train._keras import methods as keras_methods
from overlap_train._keras import training as keras_training

__all__ = [
    "TEST_HOOKS",
    "acts_in_test_batches",
    "acts_on_model_only",
    "can_be_late",
    "is_declared_safe",
    "listens",
    "looks_at_model",
    "may_change_training",
    "may_set_before_tests",
    "notes_epochs_only",
    "ordering_hooks",
    "overrides",
    "readings_inside",
    "readings_of",
    "wants_test_batches",
    "wants_train_batches",
]

_TRAIN_BATCH = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_TEST_BATCH = ("on_test_batch_begin", "on_test_batch_end")
TEST_HOOKS = ("on_test_begin", *_TEST_BATCH, "on_test_end")
_INSIDE_EPOCHS = (*_TRAIN_BATCH, "on_epoch_begin")
# After `on_train_begin`, which comes before anything is trained.
_WHILE_TRAINING = (*_INSIDE_EPOCHS, "on_epoch_end", *TEST_HOOKS)
_EVERY_HOOK = ("on_train_begin", *_WHILE_TRAINING, "on_train_end")

# Of Keras's own, those that at most end the training.
_WATCHING: tuple[Any, ...] = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.Callback,
    keras.callbacks.CSVLogger,
    keras.callbacks.EarlyStopping,
    keras.callbacks.History,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
    keras.callbacks.TerminateOnNaN,
    *([keras.callbacks.OrbaxCheckpoint] if hasattr(keras.callbacks, "OrbaxCheckpoint") else []),
)
# Of these, those that do something as a validation begins.
_WATCHING_TESTS: tuple[Any, ...] = (keras.callbacks.ProgbarLogger, keras.callbacks.TensorBoard)
# Of Keras's own, those that call no method of the model.
_NEVER_CALLING: tuple[Any, ...] = (
    keras.callbacks.Callback,
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TerminateOnNaN,
)
# What callbacks call of a model to look at it, to keep it and to put it back.
_MODEL_METHODS = frozenset(
    {"count_params", "get_layer", "get_weights", "load_weights", "save", "save_weights", "set_weights"}
    | {"summary", "to_json"}
)


def overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Whether a callback has a method of its own for `hook`, in its class or in the instance."""
    if hook in variables_of(callback) or _answers_itself(callback):
        return True
    empty = getattr(keras.callbacks.Callback, hook)
    if not keras_methods.is_stock_method(empty):
        return True  # put into Keras's own class, for all callbacks
    return getattr(type(callback), hook, None) is not empty


def listens(callbacks: Iterable[keras.callbacks.Callback], *hooks: str) -> bool:
    """Whether any of the callbacks overrides any of the hooks."""
    return any(overrides(callback, hook) for callback in callbacks for hook in hooks)


def looks_at_model(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may see or change the model at an epoch's end or around a validation."""
    if isinstance(callback, keras.callbacks.History) and _is_stock(callback, ("on_epoch_end", *TEST_HOOKS)):
        return False
    return listens([callback], "on_epoch_end", *TEST_HOOKS)


def wants_train_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback has to be called around each training step."""
    if isinstance(callback, (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)):
        stock = _is_stock(callback, _TRAIN_BATCH)
        return callback.save_freq != "epoch" or not stock
    if isinstance(callback, keras.callbacks.TensorBoard) and _is_stock(callback, _TRAIN_BATCH):
        return callback.update_freq != "epoch" or keras_training.profiles(callback)
    if isinstance(callback, keras.callbacks.TerminateOnNaN) and _is_stock(callback, _TRAIN_BATCH):
        return False  # the loop itself ends at the first loss that is not finite
    return bool(_acting(callback, _TRAIN_BATCH))


def wants_test_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback has to be called around each validation step."""
    if isinstance(callback, keras.callbacks.TensorBoard) and _is_stock(callback, _TEST_BATCH):
        return bool(callback.update_freq != "epoch")
    return bool(_acting(callback, _TEST_BATCH, _set_before_tests(callback)))


def acts_in_test_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback of which nothing is known is called around each validation step.

    What it does there, such as setting a variable or ending the validation, has to have its effect in time.
    So has one that ends the validation as it begins: it is made for one batch then.
    """
    if is_declared_safe(callback):
        return False
    unfixed = _set_before_tests(callback)
    acting = [hook for hook in _acting(callback, _TEST_BATCH, unfixed) if not _is_stock(callback, (hook,))]
    if acting and read_hooks(callback, acting, watching=_WATCHING, unfixed=unfixed).doing > Doing.APART:
        return True
    return overrides(callback, "on_test_begin") and _mentions(callback, "stop_evaluating")


def may_set_before_tests(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may set the model as a validation begins, or end the validation."""
    watches = isinstance(callback, _WATCHING_TESTS) and _is_stock(callback, ("on_test_begin",))
    if watches or is_declared_safe(callback):
        return False
    return _set_before_tests(callback) is EVERYTHING


def ordering_hooks(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """Returns the hooks for which a callback must not see an epoch begin before the last one has ended.

    Empty for callbacks that work at the end of epochs only, and for Keras's own whose `on_epoch_begin`
    gives the same result when it is called again.
    """
    if is_declared_safe(callback):
        return ()
    found = _acting(callback, _TRAIN_BATCH) if wants_train_batches(callback) else []
    if not _may_begin_again(callback):
        found += _acting(callback, ["on_epoch_begin"])
    return tuple(found)


def notes_epochs_only(callback: keras.callbacks.Callback) -> bool:
    """Whether all that a callback of Keras's does inside epochs is to note which one has begun.

    It may be called at once, or late so that nobody sees the next one's number before its time.
    """
    noting = isinstance(callback, (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore))
    return noting and _is_stock(callback, ("on_epoch_begin",)) and not wants_train_batches(callback)


def can_be_late(callback: keras.callbacks.Callback, *, watched: bool) -> bool:
    """Whether the hooks inside an epoch may be called after the epoch before it has been delivered.

    So it is if they all only keep, count or log what they are given. The time at which an epoch begins is
    then that at which the one before is delivered.

    Args:
        callback: any.
        watched: whether code of the user's takes part in the training or the validation, which may look at
            what other code of the user's keeps.
    """
    inside, begins = readings_inside(callback)
    if watched and (inside.users or begins.users):
        return False
    return inside.doing <= Doing.APART and begins.doing <= Doing.TIMES


def readings_inside(callback: keras.callbacks.Callback) -> tuple[Reading, Reading]:
    """Returns what a callback's hooks around steps and at the beginnings of epochs do."""
    batches = [hook for hook in _TRAIN_BATCH if overrides(callback, hook)]
    begins = read_hooks(callback, ["on_epoch_begin"], watching=_WATCHING, later=True)
    inside = read_hooks(callback, batches, watching=_WATCHING, unfixed=begins.sets)
    if inside.sets & begins.relied_on:
        begins = read_hooks(callback, ["on_epoch_begin"], watching=_WATCHING, later=True, unfixed=inside.sets)
    return inside, begins


def readings_of(callback: keras.callbacks.Callback) -> list[Reading]:
    """Returns all that has been read of a callback to decide how it is called during a training."""
    own = [hook for hook in (*_INSIDE_EPOCHS, *TEST_HOOKS) if overrides(callback, hook)]
    if not own:
        return []
    each = (read_hooks(callback, [hook], watching=_WATCHING) for hook in own)
    return [*readings_inside(callback), *each]


def may_change_training(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may have the training go on from an epoch's end otherwise than it went on.

    Ending the training is no such change: nothing is trained after that. Code of the user's may also change
    what a generator of the user's gives, so only that of libraries is believed.
    """
    if is_declared_safe(callback):
        return False
    stock = type(callback) in _WATCHING and _is_stock(callback, _EVERY_HOOK)
    if _calls_own_methods(callback):
        return True
    if stock and not has_own_functions(callback):
        return False
    # A subclass may do anything in what the hooks call, such as `get_monitor_value`.
    own = [hook for hook in _WHILE_TRAINING if overrides(callback, hook)]
    reading = read_hooks(callback, own, watching=_WATCHING)
    return reading.users or reading.doing > Doing.ENDS


def acts_on_model_only(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is Keras's own and runs no function of the user's that is not pure.

    Any other may also change what Python makes the data from.
    """
    if not keras_methods.is_stock_method(type(callback)) or not _is_stock(callback, _EVERY_HOOK):
        return False
    if _calls_own_methods(callback):
        return False
    return not isinstance(callback, keras.callbacks.LearningRateScheduler) or is_pure(callback.schedule)


def is_declared_safe(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback says that it only watches: `overlap_safe = True`, on its class or on itself."""
    return getattr(callback, "overlap_safe", False) is True


def _acting(
    callback: keras.callbacks.Callback, hooks: Iterable[str], unfixed: frozenset[str] = frozenset()
) -> list[str]:
    """Returns those of the hooks that a callback overrides, and does something in."""
    own = [hook for hook in hooks if overrides(callback, hook)]
    readings = {hook: read_hooks(callback, [hook], watching=_WATCHING, unfixed=unfixed) for hook in own}
    return [hook for hook in own if readings[hook].doing > Doing.NOTHING]


def _set_before_tests(callback: keras.callbacks.Callback) -> frozenset[str]:
    """Returns what a callback sets as a validation begins."""
    if not overrides(callback, "on_test_begin"):
        return frozenset()
    reading = read_hooks(callback, ["on_test_begin"], watching=_WATCHING)
    return EVERYTHING if reading.doing is Doing.ANYTHING else reading.sets


def _may_begin_again(callback: keras.callbacks.Callback) -> bool:
    repeatable: tuple[Any, ...] = (
        keras.callbacks.ModelCheckpoint,
        keras.callbacks.TensorBoard,
        keras.callbacks.BackupAndRestore,
    )
    if isinstance(callback, keras.callbacks.LearningRateScheduler):
        # Its function is asked again for an epoch that is trained again, and before the results of the last
        # one.
        return _is_stock(callback, ("on_epoch_begin",)) and is_pure(callback.schedule)
    if isinstance(callback, keras.callbacks.SwapEMAWeights):
        return not callback.swap_on_epoch and _is_stock(callback, ("on_epoch_begin",))
    return isinstance(callback, repeatable) and _is_stock(callback, ("on_epoch_begin",))


def _is_stock(callback: keras.callbacks.Callback, hooks: Iterable[str]) -> bool:
    """Whether a Keras callback's hooks are Keras's own, not a subclass's."""
    return not _answers_itself(callback) and all(
        hook not in variables_of(callback)
        and keras_methods.is_stock_method(getattr(type(callback), hook, None))
        for hook in hooks
    )


def _calls_own_methods(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may call a method of the model that the user has written, such as `save_weights`."""
    model = variables_of(callback).get("_model")
    if type(callback) in _NEVER_CALLING or not isinstance(model, keras.Model):
        return False
    return any(keras_methods.overriding_class(model, name) is not None for name in _MODEL_METHODS)


def _answers_itself(callback: keras.callbacks.Callback) -> bool:
    """Whether the class of a callback says itself what its attributes are, its hooks among them."""
    return getattr(type(callback), "__getattribute__", None) is not object.__getattribute__


def _mentions(callback: keras.callbacks.Callback, name: str) -> bool:
    """Whether the code of a callback, or a function that it holds, names an attribute."""
    members = [member for cls in type(callback).__mro__[:-1] for member in vars(cls).values()]
    for member in [*members, *variables_of(callback).values()]:
        if isinstance(member, keras.callbacks.Callback) and _mentions(member, name):
            return True  # such as one within `EpochOnly`
        function = getattr(member, "__func__", member)
        code = getattr(function, "__code__", None)
        if code is not None and (name in code.co_names or name in code.co_consts):
            return True
    return False
