"""The state of optimizers.

Leans on `_all_reduce_sum_gradients`, `_get_variable_index`, `_momentums`, `_velocities`, `_variables`. On the
training thread.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras.models import is_stock_method, set_until, variable_handles


def build_optimizer(model: keras.Model) -> None:
    """Build a model's optimizer, if it has one, as its first update would (`Optimizer.apply`)."""
    optimizer: Any = getattr(model, "optimizer", None)
    is_unbuilt = isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built
    if is_unbuilt and model.trainable_variables:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)
        optimizer.built = True


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer that applies the gradients, perhaps inside a LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def stock_optimizer_handles(model: keras.Model) -> list[Any]:
    """Return the handles of all variables of an optimizer of Keras's own, or none."""
    optimizer = model.optimizer
    if optimizer is None or not is_stock_method(type(optimizer)):
        return []
    return [handle for v in optimizer.variables for handle in variable_handles(v)]


def built_before_it_scales(model: keras.Model) -> contextlib.ExitStack:
    """Have a LossScaleOptimizer built between the forward pass, which may build layers, and its `scale_loss`.

    Until it is built it scales by a constant, so the trace would have to be made again.
    """
    undo, optimizer = contextlib.ExitStack(), model.optimizer
    if type(optimizer) is not keras.optimizers.LossScaleOptimizer or optimizer.built:
        return undo
    stock = optimizer.scale_loss

    def scale_loss(loss: Any) -> Any:
        build_optimizer(model)
        return stock(loss)

    set_until(undo, optimizer, "scale_loss", scale_loss)
    return undo


def unbuilt_again(model: keras.Model) -> contextlib.ExitStack:
    """Undo at the end of its block what the block has built of a model's optimizer (`_variables`)."""
    undo = contextlib.ExitStack()
    for optimizer in (model.optimizer, inner_optimizer(model.optimizer)):
        if isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built:
            undo.callback(optimizer._variables.__delitem__, slice(len(optimizer._variables), None))
            undo.callback(setattr, optimizer, "built", False)
    return undo


def without_all_reduce(optimizer: keras.optimizers.Optimizer | None) -> contextlib.ExitStack:
    """Omit the sum of gradients over a single replica (`_all_reduce_sum_gradients`), which changes nothing.

    TensorFlow registers a gradient function for it, for ever, that keeps the graph of the whole step alive.
    """
    name = "_all_reduce_sum_gradients"
    undo = contextlib.ExitStack()
    while optimizer is not None:
        stock = optimizer._all_reduce_sum_gradients
        if is_stock_method(stock):
            set_until(undo, optimizer, name, functools.partial(_sum_over_replicas, stock))
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return undo


def _sum_over_replicas(stock: Callable[[Any], Any], gradients_and_variables: Any) -> Any:
    pairs = list(gradients_and_variables)
    return stock(pairs) if tf.distribute.get_strategy().num_replicas_in_sync > 1 else pairs


def adam_moments(optimizer: keras.optimizers.Adam, variable: tf.Variable) -> tuple[tf.Variable, tf.Variable]:
    """Return the first and second moment of a variable (`_momentums`, `_velocities`)."""
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index].value, optimizer._velocities[index].value
