"""What an optimizer keeps and what it does besides applying gradients.

Leans on `_all_reduce_sum_gradients`, `_get_variable_index`, `_momentums` and `_velocities`. On the training
thread.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import methods

__all__ = ["adam_moments", "build_optimizer", "without_all_reduce"]


def build_optimizer(model: keras.Model) -> None:
    """Builds the optimizer of a built model as its first update would (`Optimizer.apply`)."""
    optimizer = model.optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer) or optimizer.built:
        return
    if model.built and model.trainable_variables:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)
        optimizer.built = True


def without_all_reduce(optimizer: keras.optimizers.Optimizer | None) -> contextlib.ExitStack:
    """Spares the sum of gradients over the replicas where there is one (`_all_reduce_sum_gradients`).

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
    """Returns the first and second moment of a variable (`_momentums`, `_velocities`)."""
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index].value, optimizer._velocities[index].value
