"""What an optimizer keeps and does besides applying gradients, and who hears of changes of weights.

Leans on `_all_reduce_sum_gradients`, `_get_variable_index`, `_momentums`, `_velocities`, `_variables`,
`_trainable_variables`, the classes in which Keras's optimizers have `apply`, and TensorFlow's `op_callbacks`.
On the training thread; but optimizers are heard on all threads, operations on the one that listens.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from overlap_train._keras import models
from overlap_train._keras.models import is_stock_method, variable_handles

__all__ = [
    "Listener",
    "UnbuiltAgain",
    "Updates",
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
    if optimizer is None or not models.is_stock_method(type(optimizer)):
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
        if models.is_stock_method(stock):
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


_READS = frozenset({"ReadVariableOp", "VarIsInitializedOp", "VariableShape"})

_lock = threading.Lock()
_listening: list[Updates] = []
_originals: dict[Any, Callable[..., Any]] = {}


class Listener(Protocol):
    """Is told what happens to a model's trainable weights. What it raises goes to whoever did it."""

    def applies(self, optimizer: Any) -> None:
        """An optimizer of Keras's, which is built, is about to update some of them, or does so in a trace."""

    def was_set(self, variables: Sequence[keras.Variable]) -> None:
        """Some of them have been set to a value, as layers are when they are built or restored."""

    def was_used(self, variables: Sequence[keras.Variable]) -> None:
        """An operation or a compiled function has read or changed some of them."""


class Updates:
    """Tells a listener what happens to a model's trainable weights, from `listen` to `close`."""

    def __init__(self, model: keras.Model, listener: Listener) -> None:
        self._model = model
        self._listener = listener

    def listen(self) -> None:
        """Begins, on the thread whose operations are to be heard."""
        op_callbacks.add_op_callback(self._operation)
        with _lock:
            if not _listening:
                _exchange()
            _listening.append(self)

    def close(self) -> None:
        """Ends, on the same thread; may be called repeatedly."""
        with _lock:
            if self not in _listening:
                return
            _listening.remove(self)
            if not _listening:
                _put_back()
        op_callbacks.remove_op_callback(self._operation)

    def applies(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Hear that an optimizer is about to update variables."""
        own = {id(variable) for variable in self._model.trainable_variables}
        if optimizer is not getattr(self._model, "optimizer", None) and not any(
            id(variable) in own for variable in variables
        ):
            return
        if not tf.executing_eagerly() and not optimizer.built and not tf.distribute.has_strategy():
            # What is made in a trace has no value before that runs, and a trace that fails leaves it so.
            with tf.init_scope():
                optimizer.build(list(variables))
        self._listener.applies(optimizer)

    def _operation(
        self,
        kind: Any,
        inputs: Sequence[Any],
        attrs: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        """Hear that an operation has run. Those that a trace is given (`graph`) have not."""
        kind = kind.decode() if isinstance(kind, bytes) else kind
        if graph is not None or kind in _READS:
            return
        given = {id(each) for each in inputs if each.dtype == tf.resource}
        used = (
            [v for v in self._model.trainable_variables if given.intersection(_handles(v))] if given else ()
        )
        if used:
            tell = self._listener.was_set if kind == "AssignVariableOp" else self._listener.was_used
            tell(used)


def _handles(variable: keras.Variable) -> list[int]:
    return [id(handle) for handle in variable_handles(variable)]


def _exchange() -> None:
    """Let Keras's optimizers tell what they are about to do."""
    for kind in _kinds(keras.optimizers.Optimizer):
        for owner in kind.__mro__:
            if "apply" in vars(owner) and is_stock_method(vars(owner)["apply"]):
                _originals.setdefault(owner, vars(owner)["apply"])
    for owner, original in _originals.items():
        owner.apply = _telling(original)


def _put_back() -> None:
    while _originals:
        owner, original = _originals.popitem()
        owner.apply = original


def _kinds(kind: Any) -> Iterator[type]:
    yield kind
    for inheriting in kind.__subclasses__():
        yield from _kinds(inheriting)


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        for listening in list(_listening):
            listening.applies(self, trainable_variables or getattr(self, "_trainable_variables", ()))
        return original(self, grads, trainable_variables)

    told: Callable[..., Any] = tf.autograph.experimental.do_not_convert(apply)
    return told
