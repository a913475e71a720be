"""What an optimizer keeps and what it does besides applying gradients.

Leans on `_all_reduce_sum_gradients`, `_get_variable_index`, `_momentums`, `_velocities` and `_variables`. On
the training thread.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import methods, models

__all__ = [
    "UnbuiltAgain",
    "adam_moments",
    "build_optimizer",
    "built_before_it_scales",
    "stock_optimizer_handles",
    "without_all_reduce",
]


def build_optimizer(model: keras.Model) -> None:
    """Build a model's optimizer as its first update would (`Optimizer.apply`)."""
    optimizer = model.optimizer
    if not optimizer.built and model.trainable_variables:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)
        optimizer.built = True


def stock_optimizer_handles(model: keras.Model) -> list[Any]:
    """Return the handles of all variables of an optimizer of Keras's own, or none."""
    optimizer = model.optimizer
    if optimizer is None or not methods.is_stock_method(type(optimizer)):
        return []
    return [handle for v in optimizer.variables for handle in models.variable_handles(v)]


def built_before_it_scales(model: keras.Model) -> contextlib.ExitStack:
    """Have a LossScaleOptimizer built behind the forward pass, when it is asked to scale the loss.

    Until it is built it scales by a constant (`LossScaleOptimizer.scale_loss`), and what has been traced so
    would have to be traced again. Built any earlier it would miss what the forward pass builds.
    """
    undo, optimizer = contextlib.ExitStack(), model.optimizer
    if type(optimizer) is not keras.optimizers.LossScaleOptimizer or optimizer.built:
        return undo
    stock = optimizer.scale_loss

    def scale_loss(loss: Any) -> Any:
        build_optimizer(model)
        return stock(loss)

    vars(optimizer)["scale_loss"] = scale_loss
    undo.callback(vars(optimizer).pop, "scale_loss")
    return undo


class UnbuiltAgain:
    """Takes away, behind its block, what has been built in it of a model's optimizer (`_variables`)."""

    def __init__(self, model: keras.Model) -> None:
        optimizers = [model.optimizer, getattr(model.optimizer, "inner_optimizer", None)]
        self._unbuilt = [o for o in optimizers if isinstance(o, keras.optimizers.Optimizer) and not o.built]
        self._counts = [len(optimizer._variables) for optimizer in self._unbuilt]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for optimizer, count in zip(self._unbuilt, self._counts, strict=True):
            del optimizer._variables[count:]
            optimizer.built = False


def without_all_reduce(optimizer: keras.optimizers.Optimizer | None) -> contextlib.ExitStack:
    """Spare the sum of gradients over the replicas where there is one (`_all_reduce_sum_gradients`).

    The sum of one changes nothing, but TensorFlow registers a gradient function for it, for ever, that
    keeps the graph of the whole step alive: each trained model would leave its graphs behind.
    """
    name = "_all_reduce_sum_gradients"
    undo = contextlib.ExitStack()
    while optimizer is not None:
        stock = optimizer._all_reduce_sum_gradients
        if methods.is_stock_method(stock):
            vars(optimizer)[name] = functools.partial(_sum_over_replicas, stock)
            undo.callback(vars(optimizer).pop, name)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return undo


def _sum_over_replicas(stock: Callable[[Any], Any], gradients_and_variables: Any) -> Any:
    pairs = list(gradients_and_variables)
    return stock(pairs) if tf.distribute.get_strategy().num_replicas_in_sync > 1 else pairs


def adam_moments(optimizer: keras.optimizers.Adam, variable: tf.Variable) -> tuple[tf.Variable, tf.Variable]:
    """Return the first and second moment of a variable (`_momentums`, `_velocities`)."""
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index].value, optimizer._velocities[index].value
