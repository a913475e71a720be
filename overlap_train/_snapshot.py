"""C: the snapshot, one immutable version of everything that decides the future of a training.

A read of a TensorFlow variable shares its buffer, and the next update writes to a new one while a reader
is alive; an assignment takes over the buffer of what it is given. Taking and restoring a snapshot is
therefore O(number of variables), and what a live snapshot costs is one set of values. Both belong to the
training thread, between two calls; the tensors may be read from anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._inspection.traced import CapturedVariable

_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA


@dataclass(frozen=True, eq=False)
class Values:
    """The values of a training's variables, in the order of `ModelState`."""

    trainable: tuple[tf.Tensor, ...]  # weights that the optimizer updates
    non_trainable: tuple[tf.Tensor, ...]  # moving statistics, frozen weights, seed generators
    optimizer: tuple[tf.Tensor, ...]  # iterations, learning rate, momenta
    metrics: tuple[tf.Tensor, ...]  # the state of the model's metrics
    # What a step reads or writes besides: variables of closures, losses, further optimizers, stateful RNNs.
    outside: tuple[tf.Tensor, ...] = ()

    def flat(self) -> tuple[tf.Tensor, ...]:
        """Returns all values in one sequence."""
        return (*self.trainable, *self.non_trainable, *self.optimizer, *self.metrics, *self.outside)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One version of a training, taken between two steps."""

    epoch: int  # at whose end, or inside which, it was taken
    step: int  # training steps made since `fit` began
    values: Values
    position: Any = None  # in the training data, as its cursor gave it


@dataclass(frozen=True, eq=False)
class StateVariable:
    """One variable as a snapshot takes it."""

    name: str  # for messages
    handles: tuple[Any, ...]  # of its copies on this host's replicas, or of itself
    dtype: tf.DType
    shape: tf.TensorShape
    # How Keras reads it, if its copies are not the same, as those of a metric are not.
    aggregation: tf.VariableAggregation = _FIRST

    @classmethod
    def of_keras(cls, variable: keras.Variable) -> StateVariable:
        """Returns a Keras variable, with its copies on all replicas."""
        value = variable.value
        copies = tuple(value.values) if isinstance(value, tf.distribute.DistributedValues) else (value,)
        first = copies[0]
        aggregation = value.aggregation if counts_apart(variable) else _FIRST
        return cls(variable.path, tuple(c.handle for c in copies), first.dtype, first.shape, aggregation)

    @classmethod
    def of_captured(cls, variable: CapturedVariable) -> StateVariable:
        """Returns a variable that a trace captured."""
        return cls(variable.name, (variable.handle,), variable.dtype, variable.shape)

    def read(self) -> tf.Tensor:
        """Returns the present value, which shares the variable's buffer."""
        handles = self.handles[:1] if self.aggregation == _FIRST else self.handles
        values = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype) for handle in handles]
        if self.aggregation == tf.VariableAggregation.MEAN:
            return tf.reduce_mean(values, axis=0)
        return values[0] if len(values) == 1 else tf.add_n(values)

    def assign(self, value: tf.Tensor) -> None:
        """Sets it on every replica; it takes over the tensor's buffer."""
        for index, handle in enumerate(self.handles):
            # Of a sum over the replicas the first one holds all.
            is_addend = index and self.aggregation == tf.VariableAggregation.SUM
            share = tf.zeros_like(value) if is_addend else value
            tf.raw_ops.AssignVariableOp(resource=handle, value=share)


def counts_apart(variable: keras.Variable) -> bool:
    """Whether replicas have copies of a variable that each writes to for itself."""
    copies: Sequence[Any] = getattr(variable.value, "values", ())
    return len(copies) > 1 and copies[0].synchronization == tf.VariableSynchronization.ON_READ


class ModelState:
    """The variables of a built and compiled model, to be read, restored and compared together.

    `variables` has all of them, in the order of `Values.flat`, `weights` those of the model itself, which
    come first, in an order that depends on what is trainable, and `outside` those that it does not list.
    """

    def __init__(
        self,
        model: keras.Model,
        captured: Iterable[CapturedVariable] = (),
        *,
        drawn: Iterable[CapturedVariable] = (),
        trains: bool = True,
    ) -> None:
        """List the variables of a model and those that traced steps and data functions `captured`.

        To those that are `drawn`, such as the seeds of an augmentation, the training's pipeline writes
        whenever it fetches ahead. The optimizer's are among them if the model `trains`.
        """
        optimizer = model.optimizer if trains else None
        lists = [
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables if optimizer is not None else (),
            model.metrics_variables,
        ]
        groups, handles = [], set()
        for variables in lists:
            group = [StateVariable.of_keras(variable) for variable in variables]
            # A variable may be in two lists, such as that of a metric that is a layer's too.
            group = [v for v in group if id(v.handles[0]) not in handles]
            handles |= {id(handle) for variable in group for handle in variable.handles}
            groups.append(group)
        outside = {id(v.handle): v for v in captured if id(v.handle) not in handles}
        self.outside = [StateVariable.of_captured(variable) for variable in outside.values()]
        self._groups = [*groups, self.outside]
        self.weights = [*groups[0], *groups[1]]
        self.metrics = groups[3]
        self.variables = [variable for group in self._groups for variable in group]
        metrics = {id(variable) for variable in self.metrics}
        of_pipelines = {id(variable.handle) for variable in drawn}
        moving = [i for i, variable in enumerate(self.variables) if id(variable.handles[0]) in of_pipelines]
        self._moving, self._still = moving, [i for i in range(len(self.variables)) if i not in moving]
        self._compared = [i for i in self._still if id(self.variables[i]) not in metrics]

    def read(self) -> Values:
        """Returns the present values, which share the variables' buffers.

        Read one by one on this thread: it does not wait for a thread of TensorFlow's pool while others
        keep that busy. The bare operation takes a quarter of the time of `read_value()`.
        """
        return self.pack([variable.read() for variable in self.variables])

    def read_at(self, drawn: Values) -> Values:
        """Returns the present values, but those that the pipeline of the training data writes of `drawn`."""
        then = drawn.flat()
        return self.with_values(self.read(), {index: then[index] for index in self._moving})

    @property
    def metric_handles(self) -> set[int]:
        """The `id` of each handle of the model's metrics."""
        return {id(handle) for variable in self.metrics for handle in variable.handles}

    def read_metrics(self) -> tuple[tf.Tensor, ...]:
        """Returns the present state of the model's metrics."""
        return tuple(variable.read() for variable in self.metrics)

    def set_metrics(self, values: Sequence[tf.Tensor]) -> None:
        """Sets the state of the model's metrics."""
        for variable, value in zip(self.metrics, values, strict=True):
            variable.assign(value)

    def restore(self, values: Values) -> None:
        """Puts values back, on every replica; the variables take over the tensors' buffers.

        All but those to which the pipeline of the training data writes, perhaps at this moment.
        """
        flat = values.flat()
        self.set_values(self._still, [flat[index] for index in self._still])

    def restore_pipeline(self, values: Values) -> None:
        """Puts back those to which the pipeline of the training data writes; nobody may draw from it."""
        flat = values.flat()
        self.set_values(self._moving, [flat[index] for index in self._moving])

    def changed(self, values: Values) -> list[int]:
        """Returns where, in the order of `variables`, bits differ from `values`, as `differing`."""
        return self.differing(values, self.read())

    def differing(self, first: Values, second: Values) -> list[int]:
        """Returns where, in the order of `Values.flat`, two versions differ but for metrics and drawn seeds.

        What has not been written to since the first one was read still has the same buffer, so that only what
        has been is compared bit by bit.
        """
        one, other = first.flat(), second.flat()
        return [index for index in self._compared if not same_bits(one[index], other[index])]

    def set_values(self, indices: Sequence[int], tensors: Sequence[tf.Tensor]) -> None:
        """Sets single variables, by their place in `Values.flat`, on every replica."""
        for index, tensor in zip(indices, tensors, strict=True):
            self.variables[index].assign(tensor)

    def with_values(self, values: Values, others: Mapping[int, tf.Tensor]) -> Values:
        """Returns values with others at some of their places in `Values.flat`."""
        return self.pack([others.get(index, value) for index, value in enumerate(values.flat())])

    def pack(self, flat: Sequence[tf.Tensor]) -> Values:
        """Divides values in the order of `Values.flat` into their kinds."""
        rest = iter(flat)
        return Values(*(tuple(itertools.islice(rest, len(group))) for group in self._groups))


def same_bits(a: tf.Tensor, b: tf.Tensor) -> bool:
    """Whether two tensors of the same dtype have the same shape and hold the same bits."""
    return bool(a.shape == b.shape) and (_share_a_buffer(a, b) or bool(_equal_bits(a, b)))


def _share_a_buffer(a: tf.Tensor, b: tf.Tensor) -> bool:
    """Whether two tensors are known to lie at the same place in the host's memory."""
    if a is b:
        return True
    if "CPU" not in a.device or "CPU" not in b.device:
        return False
    try:
        addresses = [np.asarray(memoryview(t)).__array_interface__["data"][0] for t in (a, b)]
    except (TypeError, ValueError, tf.errors.OpError):  # a dtype that NumPy has no name for
        return False
    return bool(addresses[0] == addresses[1])


def _equal_bits(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Whether all bits are the same: NaN equals itself, and -0.0 differs from 0.0."""
    if a.dtype.is_floating or a.dtype.is_complex:
        bits = {1: tf.int8, 2: tf.int16, 4: tf.int32}.get(a.dtype.size, tf.int64)
        a, b = tf.bitcast(a, bits), tf.bitcast(b, bits)
    return tf.reduce_all(tf.equal(a, b))
