"""What copying a model needs of Keras, and calling it on a thread of its own.

Leans on `global_state`, `SafeModeScope`, `_compile_config`, `_flatten_layers`, `_trainable`, `_name` and
`_path` of variables. On the training thread, except for the settings of threads.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from overlap_train._keras.names import SafeModeScope, global_state
from overlap_train._keras.randomness import random_states, set_random_states


def preserved_state() -> contextlib.ExitStack:
    """Return a context that leaves random states and running names as they were.

    Leans on `global_seed_generator` and `object_name_uids`.
    """
    states = random_states()
    generator = global_state.get_global_attribute("global_seed_generator")
    names = dict(global_state.get_global_attribute("object_name_uids") or {})
    undo = contextlib.ExitStack()

    @undo.callback
    def put_back() -> None:
        global_state.set_global_attribute("global_seed_generator", generator)
        global_state.set_global_attribute("object_name_uids", collections.defaultdict(int, names))
        set_random_states(states)

    return undo


# Which `custom_object_scope`, `keras.config.set_dtype_policy` and others set, for a thread alone.
_OF_THREADS = (
    *("custom_objects_scope_dict", "dtype_policy", "flash_attention"),
    *("interactive_logging", "traceback_filtering"),
)


def thread_settings() -> dict[str, Any]:
    """Return Keras's settings of the calling thread; None for what has not been set."""
    return {name: _copied(global_state.get_global_attribute(name)) for name in _OF_THREADS}


def set_thread_settings(settings: Mapping[str, Any]) -> None:
    """Set on the calling thread what `thread_settings` returned on another."""
    for name, value in settings.items():
        global_state.set_global_attribute(name, _copied(value))


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def trusted() -> contextlib.AbstractContextManager[None]:
    """Return a context in which Keras loads the functions of a model's configuration (`SafeModeScope`)."""
    scope: contextlib.AbstractContextManager[None] = SafeModeScope(safe_mode=False)
    return scope


def compile_arguments(model: keras.Model) -> dict[str, Any] | None:
    """Return what a model was compiled with (`_compile_config`); None if it has its own `compile`."""
    config = getattr(model, "_compile_config", None)
    if config is None or type(model).compile is not keras.Model.compile:
        return None
    return dict(config.config)


def trainable(model: keras.Model) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Return for each layer of a model and each of its variables whether it is trainable (`_trainable`)."""
    layers = tuple(layer._trainable for layer in model._flatten_layers())
    return layers, tuple(variable.trainable for variable in model.variables)


def set_trainable(copy: keras.Model, flags: tuple[tuple[bool, ...], tuple[bool, ...]]) -> None:
    """Set on a copy what `trainable` returned for the model."""
    layers, variables = flags
    for layer, flag in zip(copy._flatten_layers(), layers, strict=True):
        layer._trainable = flag
    if len(copy.variables) != len(variables):
        return  # the model has got more since it was copied
    for variable, flag in zip(copy.variables, variables, strict=True):
        if variable.trainable != flag:
            variable.trainable = flag


def name_alike(copies: Iterable[keras.Variable], variables: Iterable[keras.Variable]) -> None:
    """Give the variables of a copy the names and paths of the model's, by which code may find them."""
    for copy, variable in zip(copies, variables, strict=True):
        copy._name, copy._path = variable.name, variable.path


@functools.cache
def base_attributes() -> frozenset[str]:
    """Return the names of the attributes that Keras itself gives to every model."""
    with preserved_state():
        return frozenset(vars(keras.Model()))
