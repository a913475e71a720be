"""What a callback's code meets: part of the training, a library's, data, or the user's own.

Of a library it is taken for granted that it cannot reach the training unless it is handed the callback, the
model or a part of it.
"""

from __future__ import annotations

import collections
import enum
import inspect
import sys
import types
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["SIMPLE", "Given", "Known", "Origin", "Unclear", "Value", "asks", "met", "origin_of"]

SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_MOST_ITEMS = 10_000
_CALLABLE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type)
_TRAINING_OBJECTS: tuple[Any, ...] = (
    keras.KerasTensor,
    keras.Variable,
    keras.layers.Layer,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.random.SeedGenerator,
    keras.utils.PyDataset,
    np.random.Generator,
    np.random.RandomState,
    tf.Module,
    tf.Tensor,
    tf.Variable,
    tf.data.Dataset,
)
_TRAINING_PACKAGES = frozenset({"jax", "keras", "overlap_train", "tensorflow", "tf_keras", "torch"})
# Objects that only keep what they are given, or write it.
_STANDARD_KEEPERS = frozenset(
    {"_csv", "_io", "collections", "csv", "datetime", "decimal", "io", "logging", "pathlib"}
)


class Unclear(Exception):
    """What is done here cannot be told."""


class Given(enum.Enum):
    """A value that is known by what it may be only."""

    DATA = "numbers, text, containers of these, or an object that cannot reach the training"
    LATER = "the number of an epoch that is not the first"
    PART = "the model or what has been read from it"


@dataclass(frozen=True)
class Known:
    """An object at hand.

    Attributes:
        value: the object.
        fixed: whether it will be the same when the code runs.
    """

    value: Any
    fixed: bool = True


Value = Any
"""`Given`, `Known`, or what a reader makes of a function defined inside another."""


class Origin(enum.Enum):
    """Whose a function or a class is."""

    TRAINING = "Keras's, TensorFlow's or ours"
    STANDARD = "of Python's standard library"
    LIBRARY = "of an installed package"
    USER = "the user's"


def origin_of(thing: Any) -> Origin:
    """Returns whose a function, a class or a module is."""
    name = _module_of(thing)
    package = name.split(".")[0]
    if package in _TRAINING_PACKAGES or name.startswith(("numpy.random", "numpy.mtrand")):
        return Origin.TRAINING
    if package in sys.stdlib_module_names:
        return Origin.STANDARD
    module = sys.modules.get(name) or sys.modules.get(package)
    parts = PurePath(getattr(module, "__file__", None) or "").parts
    return Origin.LIBRARY if {"site-packages", "dist-packages"} & set(parts) else Origin.USER


def met(value: Any, *, fixed: bool = True) -> Value:
    """Returns what an object is to a callback that holds it.

    Raises:
        Unclear: a container holds what may do anything.
    """
    if isinstance(value, (*SIMPLE, *_CALLABLE)):
        return Known(value, fixed)
    if isinstance(value, _TRAINING_OBJECTS):
        return Given.PART
    if _is_container(value):
        return _container(value, above=())
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return Given.DATA
    if (
        origin_of(type(value)) is Origin.STANDARD
        and _module_of(type(value)).split(".")[0] in _STANDARD_KEEPERS
    ):
        return Given.DATA
    return Known(value, fixed)


def asks(value: Value, *methods: str) -> bool:
    """Whether one of Python's special methods is code that somebody wrote for the class of an object."""
    if not isinstance(value, Known) or isinstance(value.value, (*SIMPLE, *_CALLABLE)):
        return False
    kind = type(value.value)
    found = (inspect.getattr_static(kind, method, None) for method in methods)
    return origin_of(kind) is not Origin.LIBRARY and any(isinstance(f, types.FunctionType) for f in found)


def _module_of(thing: Any) -> str:
    """Returns the module in which something was written, whatever has been wrapped around it."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    variables = thing.__globals__ if isinstance(thing, types.FunctionType) else {}
    return str(variables.get("__name__") or getattr(thing, "__module__", None) or "builtins")


def _is_container(value: Any) -> bool:
    return isinstance(value, _CONTAINERS) and origin_of(type(value)) is Origin.STANDARD


def _container(value: Any, above: tuple[int, ...]) -> Given:
    if len(value) > _MOST_ITEMS or len(above) > 3 or id(value) in above:
        raise Unclear
    factory = value.default_factory if isinstance(value, collections.defaultdict) else None
    if isinstance(factory, types.FunctionType):
        raise Unclear
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
    found = Given.DATA
    for item in items:
        if type(item) in SIMPLE:
            continue
        inner = _container(item, (*above, id(value))) if _is_container(item) else met(item)
        if inner is Given.PART:
            found = Given.PART
        elif isinstance(inner, Known) and not isinstance(inner.value, SIMPLE):
            raise Unclear
    return found
