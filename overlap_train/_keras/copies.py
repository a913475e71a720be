"""What copying a model needs of Keras.

Leans on `global_state`, `SafeModeScope`, `_compile_config`, `_flatten_layers`, `_trainable`, `_path` of
variables and TensorFlow's `context`.
On the training thread.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from tensorflow.python.eager import context

from overlap_train._keras.names import SafeModeScope, global_state

__all__ = [
    "base_attributes",
    "build_optimizer",
    "compile_arguments",
    "eager_random_state",
    "name_alike",
    "set_path",
    "set_trainable",
    "trainable",
    "trusted",
    "undisturbed",
]


def eager_random_state() -> Any:
    """Return the state from which eager operations without a seed take theirs; None before a seed is set."""
    generator = getattr(context.context(), "_rng", None)
    return None if generator is None else generator.getstate()


def undisturbed() -> contextlib.ExitStack:
    """Leave random states and running names as they were, whatever is built meanwhile.

    Those of Python, NumPy and TensorFlow (`context()._seed`, `_rng`), and of Keras its global seed generator
    and the numbers that make names unique (`global_seed_generator`, `object_name_uids`).
    """
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    eager = context.context()
    kept = {name: getattr(eager, name) for name in ("_seed", "_rng") if hasattr(eager, name)}
    tensorflow = kept["_rng"].getstate() if kept.get("_rng") is not None else None
    generator = global_state.get_global_attribute("global_seed_generator")
    seed = generator.state.value.read_value() if generator is not None else None
    names = dict(global_state.get_global_attribute("object_name_uids") or {})
    undo = contextlib.ExitStack()

    @undo.callback
    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        for name, value in kept.items():
            setattr(eager, name, value)
        if tensorflow is not None:
            kept["_rng"].setstate(tensorflow)
        if generator is not None:
            generator.state.assign(seed)
        global_state.set_global_attribute("global_seed_generator", generator)
        global_state.set_global_attribute("object_name_uids", collections.defaultdict(int, names))

    return undo


def trusted() -> contextlib.AbstractContextManager[None]:
    """Let the functions in a model's configuration be made again, on this thread (`SafeModeScope`)."""
    scope: contextlib.AbstractContextManager[None] = SafeModeScope(safe_mode=False)
    return scope


def compile_arguments(model: keras.Model) -> dict[str, Any] | None:
    """Return what a model was compiled with, the objects themselves (`_compile_config`).

    None if it is not compiled, or by a `compile` of its own.
    """
    config = getattr(model, "_compile_config", None)
    if config is None or type(model).compile is not keras.Model.compile:
        return None
    return dict(config.config)


def build_optimizer(model: keras.Model) -> None:
    """Make the variables of a model's optimizer, if it has one that has not."""
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built:
        optimizer.build(model.trainable_variables)


def trainable(model: keras.Model) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Return whether each of a model's layers is to be trained, and each of its variables."""
    layers = tuple(layer._trainable for layer in model._flatten_layers())
    return layers, tuple(variable.trainable for variable in model.variables)


def set_trainable(copy: keras.Model, flags: tuple[tuple[bool, ...], tuple[bool, ...]]) -> None:
    """Say of a copy's layers and variables what `trainable` has said of the model's (`_trainable`)."""
    layers, variables = flags
    for layer, flag in zip(copy._flatten_layers(), layers, strict=True):
        layer._trainable = flag
    if len(copy.variables) != len(variables):
        return  # the model has got some since it was copied
    for variable, flag in zip(copy.variables, variables, strict=True):
        if variable.trainable != flag:
            variable.trainable = flag


def name_alike(copied: Iterable[keras.Variable], own: Iterable[keras.Variable]) -> None:
    """Give the variables of a copy the names and paths of the model's own (`_name`, `_path`).

    They depend on when and within what a layer was built, and a function may look a variable up by its path.
    """
    for theirs, ours in zip(copied, own, strict=True):
        set_path(theirs, ours.path)


def set_path(variable: keras.Variable, path: str) -> None:
    """Give a variable a path, and the name that it ends with."""
    variable._name, variable._path = path.rpartition("/")[2], path


@functools.cache
def base_attributes() -> frozenset[str]:
    """Return the names of the attributes that Keras itself gives to every model."""
    with undisturbed():
        return frozenset(vars(keras.Model()))
