"""What is known of the callbacks of libraries, Keras among them.

A hook counts as a library's if the function that runs is the library's own, and so are the methods that it
calls by name: a user's subclass of a known callback may override any of them.
"""

from __future__ import annotations

import dis
import enum
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import keras

from overlap_train._inspection.attributes import variables_of
from overlap_train._inspection.code import Origin, origin_of
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training

# Operations of code that returns and does nothing else.
_IDLE = frozenset({"NOP", "RESUME", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"})
# Of Keras's own, those that call no method of the model.
_NEVER_CALLING: tuple[Any, ...] = (
    *(keras.callbacks.Callback, keras.callbacks.CSVLogger, keras.callbacks.History),
    *(keras.callbacks.ProgbarLogger, keras.callbacks.RemoteMonitor, keras.callbacks.TerminateOnNaN),
)
# What callbacks call of a model to look at it, to keep it and to put it back.
_MODEL_METHODS = frozenset(
    {"count_params", "get_layer", "get_weights", "load_weights", "save", "save_weights", "set_weights"}
    | {"summary", "to_json"}
)


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


def is_idle(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Whether a hook returns and does nothing else, by its code or by what is known of a library."""
    member = variables_of(callback).get(hook, getattr(type(callback), hook, None))
    code = getattr(getattr(member, "__func__", member), "__code__", None)
    is_empty = isinstance(code, types.CodeType) and _returns_only(code)
    return is_empty or knowledge_of(callback, hook) is LibraryHook.IDLE


@functools.lru_cache(maxsize=1024)
def _returns_only(code: types.CodeType) -> bool:
    return {each.opname for each in dis.get_instructions(code)} <= _IDLE


def calls_own_methods(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may call a method of the model that the user has written, such as `save_weights`."""
    model = variables_of(callback).get("_model")
    if type(callback) in _NEVER_CALLING or not isinstance(model, keras.Model):
        return False
    return any(keras_models.overriding_class(model, name) is not None for name in _MODEL_METHODS)


def has_own_functions(callback: keras.callbacks.Callback) -> bool:
    """Whether the user has set functions on a callback, as by `callback.monitor_op = better`."""
    values = [value for value in variables_of(callback).values() if callable(value)]
    functions = [getattr(value, "__func__", getattr(value, "func", value)) for value in values]
    return any(isinstance(f, types.FunctionType) and origin_of(f) is Origin.USER for f in functions)
