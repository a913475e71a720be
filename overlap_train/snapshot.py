"""C: the snapshot, one immutable version of everything in the model that decides the future.

A read of a TensorFlow variable shares its buffer, and the next update writes to a new one while a reader
is alive; `assign` takes over the buffer of what it is given. Taking and restoring a snapshot is therefore
O(number of variables), and what a live snapshot costs is one set of values. Both belong to the training
thread, between two calls; the tensors may be read from anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train import _keras

__all__ = ["ModelState", "Snapshot", "Values"]


@dataclass(frozen=True, eq=False)
class Values:
    """The values of a model's variables, in the order of `ModelState`.

    Attributes:
        trainable: weights that the optimizer updates.
        non_trainable: the other state of layers: moving statistics, frozen weights, seed generators,
            the states of stateful RNNs.
        optimizer: iterations, learning rate, momenta.
        metrics: the state of the training metrics.
    """

    trainable: tuple[tf.Tensor, ...]
    non_trainable: tuple[tf.Tensor, ...]
    optimizer: tuple[tf.Tensor, ...]
    metrics: tuple[tf.Tensor, ...]

    def flat(self) -> tuple[tf.Tensor, ...]:
        return (*self.trainable, *self.non_trainable, *self.optimizer, *self.metrics)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One version of a training, taken between two steps.

    Attributes:
        epoch: the epoch at whose end, or inside which, it was taken.
        step: training steps made since `fit` began.
        values: the model's variables.
        position: the position in the training data, as its cursor gave it.
    """

    epoch: int
    step: int
    values: Values
    position: Any = None


class ModelState:
    """The variables of a built and compiled model, to be read, restored and compared together."""

    def __init__(self, model: keras.Model) -> None:
        self.trainable: list[keras.Variable] = list(model.trainable_variables)
        self.non_trainable: list[keras.Variable] = [
            *model.non_trainable_variables,
            *_keras.recurrent_states(model),
        ]
        self.metrics: list[keras.Variable] = list(model.metrics_variables)
        optimizer = model.optimizer
        self.optimizer: list[keras.Variable] = list(optimizer.variables) if optimizer is not None else []
        self._all = [*self.trainable, *self.non_trainable, *self.optimizer, *self.metrics]
        self._copies = [_copies(variable) for variable in self._all]
        self._handles = [tuple(c.handle for c in copies) for copies in self._copies]
        specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self._all]
        self._assign = tf.function(self._assign_all, autograph=False).get_concrete_function(specs)
        self._equal = tf.function(_all_equal_bits, autograph=False).get_concrete_function(specs, specs)

    def read(self) -> Values:
        """Returns the present values, which share the variables' buffers.

        Read one by one on this thread: it does not wait for a thread of TensorFlow's pool while others
        keep that busy. The bare operation takes a quarter of the time of `read_value()`.
        """
        return self.pack(
            [_read(copies, handles) for copies, handles in zip(self._copies, self._handles, strict=True)]
        )

    def restore(self, values: Values) -> None:
        """Puts values back, on every replica; the variables take over the tensors' buffers."""
        self._assign(list(values.flat()))

    def changed(self, values: Values) -> list[keras.Variable]:
        """Returns the weights and optimizer variables whose bits differ from `values`; not the metrics."""
        return [self._all[index] for index in self.differing(values, self.read())]

    def differing(self, first: Values, second: Values) -> list[int]:
        """Returns where, in the order of `Values.flat`, weights and optimizer variables differ."""
        same = self._equal(list(first.flat()), list(second.flat()))
        compared = len(self._all) - len(self.metrics)
        return [index for index, unchanged in enumerate(same[:compared]) if not bool(unchanged)]

    def set_some(self, indices: Sequence[int], tensors: Sequence[tf.Tensor]) -> None:
        """Sets single variables, by their place in `Values.flat`, on every replica."""
        for index, tensor in zip(indices, tensors, strict=True):
            for copy in self._copies[index]:
                copy.assign(tensor)

    def _assign_all(self, values: Sequence[tf.Tensor]) -> None:
        for copies, value in zip(self._copies, values, strict=True):
            copies[0].assign(value)
            for copy in copies[1:]:
                # Of a sum over the replicas the first one holds all.
                copy.assign(tf.zeros_like(value) if _is_sum(copies) else value)

    def pack(self, flat: Sequence[tf.Tensor]) -> Values:
        """Divides values in the order of `Values.flat` into their kinds."""
        parts, start = [], 0
        for group in (self.trainable, self.non_trainable, self.optimizer, self.metrics):
            parts.append(tuple(flat[start : start + len(group)]))
            start += len(group)
        return Values(*parts)


def _copies(variable: keras.Variable) -> tuple[tf.Variable, ...]:
    """Returns a variable's copies on this host's replicas, or itself."""
    value = variable.value
    return tuple(value.values) if isinstance(value, tf.distribute.DistributedValues) else (value,)


def _is_sum(copies: Sequence[tf.Variable]) -> bool:
    """Whether the value is the sum of the copies, as a metric's is, and not the same on all."""
    return len(copies) > 1 and copies[0].synchronization == tf.VariableSynchronization.ON_READ


def _read(copies: Sequence[tf.Variable], handles: Sequence[Any]) -> tf.Tensor:
    dtype = copies[0].dtype
    if not _is_sum(copies):
        handles = handles[:1]
    values = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) for handle in handles]
    return values[0] if len(values) == 1 else tf.add_n(values)


def _all_equal_bits(first: Sequence[tf.Tensor], second: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """For each pair, whether all bits are the same: NaN equals itself, and -0.0 differs from 0.0."""
    return [_equal_bits(a, b) for a, b in zip(first, second, strict=True)]


def _equal_bits(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    if a.dtype.is_floating or a.dtype.is_complex:
        bits = {1: tf.int8, 2: tf.int16, 4: tf.int32}.get(a.dtype.size, tf.int64)
        a, b = tf.bitcast(a, bits), tf.bitcast(b, bits)
    return tf.reduce_all(tf.equal(a, b))
