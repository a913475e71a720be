"""Which callbacks listen to which hooks, and what that allows the training to do.

The loop may group steps only while no callback listens to batches, and the training may run ahead of its
validation only while no hook has to be called between two of its steps. A table says what Keras's own
callbacks and those of some libraries do. Hooks of other callbacks are assumed to do anything, unless they
merely note their arguments (`notes`) or the callback declares `overlap_safe = True`. Such a callback may end
the training, but changes nothing else of it; its hooks inside an epoch may be called for an epoch that is
taken back.

A hook counts as a library's if the function that runs is the library's own, and so are the methods that it
calls by name: a user's subclass of a known callback may override any of them.
"""

from __future__ import annotations

import dis
import enum
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from overlap_train._callbacks.epoch_only import EpochOnly
from overlap_train._callbacks.notes import only_computes, only_notes
from overlap_train._inspection.attributes import variables_of
from overlap_train._inspection.code import Origin, origin_of
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training


class LibraryHook(enum.Enum):
    """What a hook of a library does."""

    IDLE = enum.auto()  # nothing, as the callback is set
    NOTES = enum.auto()  # it counts, logs or shows what it is given
    WATCHES = enum.auto()  # it looks at the training, and at most ends it


# Packages whose callbacks watch a training; of Keras's own, these do.
_PACKAGES = frozenset(
    {"comet_ml", "dvclive", "keras_tuner", "mlflow", "optuna", "optuna_integration", "tensorboard", "tqdm"}
    | {"wandb"}
)
_OF_KERAS = frozenset(
    {"BackupAndRestore", "CSVLogger", "Callback", "EarlyStopping", "History", "ModelCheckpoint"}
    | {"MonitorCallback", "OrbaxCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard"}
    | {"TerminateOnNaN"}
)


def _idle_if(condition: bool) -> LibraryHook | None:
    return LibraryHook.IDLE if condition else None


def _saves(callback: Any) -> LibraryHook | None:
    return _idle_if(callback.save_freq == "epoch")


def _calls_tuner(callback: Any) -> LibraryHook | None:
    hooks = ("on_epoch_begin", "on_batch_begin", "on_batch_end", "on_epoch_end")
    return _idle_if(
        all(_package(getattr(type(callback.tuner), hook, None)) == "keras_tuner" for hook in hooks)
    )


def _shows_bars(callback: Any) -> LibraryHook | None:
    bars = (variables_of(callback).get(name) for name in ("epoch_bar", "batch_bar"))
    ours = all(bar is None or _package(type(bar).update) == "tqdm" for bar in bars)
    return LibraryHook.NOTES if ours else None


# What is done around the batches, of training and validation alike, by callbacks that do anything there.
_AROUND_BATCHES: Mapping[tuple[str, str], Callable[[Any], LibraryHook | None]] = {
    ("comet_ml", "CometKerasCallback"): lambda callback: LibraryHook.NOTES,
    ("keras", "BackupAndRestore"): _saves,
    ("keras", "ModelCheckpoint"): _saves,
    ("keras", "OrbaxCheckpoint"): _saves,
    ("keras", "ProgbarLogger"): lambda callback: LibraryHook.NOTES,
    ("keras", "TensorBoard"): lambda callback: _idle_if(
        callback.update_freq == "epoch" and not keras_training.profiles(callback)
    ),
    ("keras", "TerminateOnNaN"): lambda callback: LibraryHook.IDLE,  # the loop itself ends at such a loss
    ("keras_tuner", "TunerCallback"): _calls_tuner,
    ("mlflow", "MlflowCallback"): lambda callback: _idle_if(callback.log_every_n_steps is None),
    ("mlflow", "MlflowModelCheckpointCallback"): lambda callback: (
        LibraryHook.NOTES if callback.save_freq == "epoch" else None
    ),
    ("tqdm", "TqdmCallback"): _shows_bars,
    ("wandb", "WandbMetricsLogger"): lambda callback: (
        None if callback.logging_batch_wise else LibraryHook.NOTES
    ),
    ("wandb", "WandbModelCheckpoint"): _saves,
}


def knowledge_of(callback: Any, hook: str) -> LibraryHook | None:
    """Return what a hook of a callback does, if it is that of a library in the table; else None."""
    member = variables_of(callback).get(hook, getattr(type(callback), hook, None))
    package = _package(member)
    if package != "keras" and package not in _PACKAGES:
        return None
    owner = next((kind for kind in type(callback).__mro__ if _is_of(kind, package, hook)), None)
    if owner is None or not _is_as_written(callback, owner, member):
        return None
    key = (package, owner.__name__)
    if "batch" in hook or key == ("keras_tuner", "TunerCallback"):
        return _AROUND_BATCHES[key](callback) if key in _AROUND_BATCHES else None
    return LibraryHook.WATCHES if package != "keras" or owner.__name__ in _OF_KERAS else None


def only_watches(callback: Any) -> bool:
    """Whether a callback is one of a library's that watch a training, and at most end it."""
    kind = type(callback)
    package = kind.__module__.split(".")[0]
    return package in _PACKAGES or (package == "keras" and kind.__name__ in _OF_KERAS)


def _package(member: Any) -> str:
    """Return the package in whose code a function or method is written, whatever has been wrapped."""
    function = getattr(member, "__func__", member)
    return str(getattr(function, "__globals__", {}).get("__name__", "")).split(".")[0]


def _is_of(kind: type, package: str, hook: str) -> bool:
    is_listed = (package, kind.__name__) in _AROUND_BATCHES
    return kind.__module__.split(".")[0] == package and (hook in vars(kind) or is_listed)


def _is_as_written(callback: Any, owner: type, member: Any) -> bool:
    """Whether the methods that a function names are those that its library has given the callback."""
    code = getattr(getattr(member, "__func__", member), "__code__", None)
    names = code.co_names if code is not None else ()
    attributes = variables_of(callback)
    return all(
        inspect.getattr_static(type(callback), name, None) is inspect.getattr_static(owner, name, None)
        and (not inspect.isroutine(attributes.get(name)) or _package(attributes[name]) == _package(member))
        for name in names
    )


TRAIN_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
TEST_BATCH_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
TEST_HOOKS = ("on_test_begin", *TEST_BATCH_HOOKS, "on_test_end")
EVERY_HOOK = (
    *("on_train_begin", "on_epoch_begin", *TRAIN_BATCH_HOOKS, "on_epoch_end", *TEST_HOOKS, "on_train_end"),
)
# Operations of code that returns and does nothing else.
_IDLE = frozenset({"NOP", "RESUME", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"})
# Of Keras's own, those that call no method of the model.
_NEVER_CALLING: tuple[Any, ...] = (
    *(keras.callbacks.Callback, keras.callbacks.CSVLogger, keras.callbacks.History),
    *(keras.callbacks.ProgbarLogger, keras.callbacks.RemoteMonitor, keras.callbacks.TerminateOnNaN),
)
# Of Keras's own, those whose `on_epoch_begin` may be called twice.
_BEGINNING_AGAIN: tuple[Any, ...] = (
    *(keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint, keras.callbacks.TensorBoard),
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
    if not keras_models.is_stock_method(empty):
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
    return bool(_acting(callback, TRAIN_BATCH_HOOKS))


def wants_test_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback has to be called around each validation step."""
    return bool(_acting(callback, TEST_BATCH_HOOKS))


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
    if is_declared_safe(callback):
        return False
    callback, hooks = _within(callback, EVERY_HOOK)
    if not only_watches(callback) or _calls_own_methods(callback) or _has_own_functions(callback):
        return True
    return not _is_a_library_s(callback, [hook for hook in hooks if overrides(callback, hook)])


def acts_on_model_only(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is Keras's own and cannot change what Python makes the data from."""
    callback, hooks = _within(callback, EVERY_HOOK)
    if not keras_models.is_stock_method(type(callback)) or not _is_stock(callback, hooks):
        return False
    if _calls_own_methods(callback):
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
    return [hook for hook in hooks if overrides(callback, hook) and not _is_idle(callback, hook)]


def _is_idle(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Whether a hook returns and does nothing else, by its code or by what is known of a library."""
    if _answers_itself(callback):
        return False
    member = variables_of(callback).get(hook, getattr(type(callback), hook, None))
    code = getattr(getattr(member, "__func__", member), "__code__", None)
    is_empty = isinstance(code, types.CodeType) and _returns_only(code)
    return is_empty or knowledge_of(callback, hook) is LibraryHook.IDLE


@functools.lru_cache(maxsize=1024)
def _returns_only(code: types.CodeType) -> bool:
    return {each.opname for each in dis.get_instructions(code)} <= _IDLE


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


def _is_stock(callback: keras.callbacks.Callback, hooks: Iterable[str]) -> bool:
    """Whether a callback's hooks are Keras's own, not a subclass's."""
    return not _answers_itself(callback) and all(
        hook not in variables_of(callback)
        and keras_models.is_stock_method(getattr(type(callback), hook, None))
        for hook in hooks
    )


def _calls_own_methods(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may call a method of the model that the user has written, such as `save_weights`."""
    model = variables_of(callback).get("_model")
    if type(callback) in _NEVER_CALLING or not isinstance(model, keras.Model):
        return False
    return any(keras_models.overriding_class(model, name) is not None for name in _MODEL_METHODS)


def _has_own_functions(callback: keras.callbacks.Callback) -> bool:
    """Whether the user has set functions on a callback, as by `callback.monitor_op = better`."""
    values = [value for value in variables_of(callback).values() if callable(value)]
    functions = [getattr(value, "__func__", getattr(value, "func", value)) for value in values]
    return any(isinstance(f, types.FunctionType) and origin_of(f) is Origin.USER for f in functions)


def _answers_itself(callback: keras.callbacks.Callback) -> bool:
    """Whether the class of a callback computes its attributes, its hooks among them."""
    return getattr(type(callback), "__getattribute__", None) is not object.__getattribute__
