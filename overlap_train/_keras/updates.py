"""Hears of what changes a model's weights: before Keras's optimizers, and behind all other operations.

Leans on the classes in which Keras's optimizers have `apply`, on their `_trainable_variables`, and on
TensorFlow's `op_callbacks`. Optimizers are heard on all threads, operations on the one that listens.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from overlap_train._keras.methods import is_stock_method
from overlap_train._keras.models import variable_handles

__all__ = ["Listener", "Updates"]

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
