"""The state of optimizers, and listeners that hear of changes of weights.

Leans on `_all_reduce_sum_gradients`, `_get_variable_index`, `_momentums`, `_velocities`, `_variables`,
`_trainable_variables`, the classes in which Keras's optimizers have `apply`, and TensorFlow's `op_callbacks`.
On the training thread. A listener hears optimizers on all threads, and operations on its own thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from overlap_train._keras.models import is_stock_method, set_until, variable_handles


def build_optimizer(model: keras.Model) -> None:
    """Build a model's optimizer, if it has one, as its first update would (`Optimizer.apply`)."""
    optimizer: Any = getattr(model, "optimizer", None)
    is_unbuilt = isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built
    if is_unbuilt and model.trainable_variables:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)
        optimizer.built = True


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


class UnbuiltAgain:
    """Undoes at the end of its block what the block has built of a model's optimizer (`_variables`)."""

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


_READS = frozenset({"ReadVariableOp", "VarIsInitializedOp", "VariableShape"})

_lock = threading.Lock()
_active: list[Updates] = []
_originals: dict[Any, Callable[..., Any]] = {}


class Updates:
    """Tells a listener what happens to a model's trainable weights, from `listen` to `close`.

    `applies(optimizer)` is called before a built optimizer of Keras's updates weights, perhaps in a trace,
    `was_set(variables)` when weights were set, as when layers are built, and `was_used(variables)` when an
    operation has read or changed them. What it raises reaches the code that did it.
    """

    def __init__(self, model: keras.Model, listener: Any) -> None:
        self._model, self._listener = model, listener

    def listen(self) -> None:
        """Begin, on the thread whose operations are to be heard."""
        op_callbacks.add_op_callback(self._operation)
        with _lock:
            if not _active:
                _patch_optimizers()
            _active.append(self)

    def close(self) -> None:
        """End, on the same thread. Idempotent."""
        with _lock:
            if self not in _active:
                return
            _active.remove(self)
            while not _active and _originals:
                owner, original = _originals.popitem()
                owner.apply = original
        op_callbacks.remove_op_callback(self._operation)

    def applies(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Hear that an optimizer is about to update variables."""
        weights = {id(variable) for variable in self._model.trainable_variables}
        is_ours = optimizer is getattr(self._model, "optimizer", None)
        if not is_ours and weights.isdisjoint(map(id, variables)):
            return
        if not tf.executing_eagerly() and not optimizer.built and not tf.distribute.has_strategy():
            # A variable made in a trace has no value until the trace runs, and none ever if the trace fails.
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
        """Hear that an operation has run, or, with a `graph`, that it was added to a trace."""
        kind = kind.decode() if isinstance(kind, bytes) else kind
        if graph is not None or kind in _READS:
            return
        resources = {id(tensor) for tensor in inputs if tensor.dtype == tf.resource}
        if not resources:
            return
        weights = self._model.trainable_variables
        used = [v for v in weights if not resources.isdisjoint(map(id, variable_handles(v)))]
        if used:
            notify = self._listener.was_set if kind == "AssignVariableOp" else self._listener.was_used
            notify(used)


def _patch_optimizers() -> None:
    """Have the optimizers of Keras announce what they are about to update."""
    for kind in _subclasses(keras.optimizers.Optimizer):
        for owner in kind.__mro__:
            if "apply" in vars(owner) and is_stock_method(vars(owner)["apply"]):
                _originals.setdefault(owner, vars(owner)["apply"])
    for owner, original in _originals.items():
        owner.apply = _announcing(original)


def _subclasses(kind: Any) -> Iterator[type]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _subclasses(subclass)


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        for updates in list(_active):
            updates.applies(self, trainable_variables or getattr(self, "_trainable_variables", ()))
        return original(self, grads, trainable_variables)

    announcing: Callable[..., Any] = tf.autograph.experimental.do_not_convert(apply)
    return announcing
