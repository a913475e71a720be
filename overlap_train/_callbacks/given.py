"""What a callback's code meets: part of the training, a library's, data, or the user's own."""

from __future__ import annotations

import enum
import inspect
import types
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._inspection.origins import Origin, is_simple, origin_of

__all__ = ["CALLABLE", "TRAINING_OBJECTS", "Given", "Known", "Value", "asks"]

CALLABLE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type)
TRAINING_OBJECTS: tuple[Any, ...] = (
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


class Given(enum.Enum):
    """A value that is known by what it may be only."""

    DATA = "numbers, text, containers of these, or an object that cannot reach the training"
    ANSWER = "True or False"
    LOGS = "what Keras gives a hook: a number, or a dict of numbers or None"
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


def asks(value: Value, *methods: str) -> bool:
    """Whether one of Python's special methods is code that somebody wrote for the class of an object."""
    if not isinstance(value, Known) or is_simple(value.value) or isinstance(value.value, CALLABLE):
        return False
    kind = type(value.value)
    found = (inspect.getattr_static(kind, method, None) for method in methods)
    return origin_of(kind) is not Origin.LIBRARY and any(isinstance(f, types.FunctionType) for f in found)
