"""Variables to which a function only adds constants: their values are known after any number of calls.

The states of seed generators are such. Keras's recurrent layers with dropout draw seeds in each validation
step, too, without using them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train._inspection.traced import CapturedVariable, TracedFunction


@dataclass(frozen=True, eq=False)
class Counter:
    """A variable of integers to which each call of a traced function adds the same constant."""

    variable: CapturedVariable
    step: np.ndarray[Any, Any]

    def times(self, calls: int) -> tf.Tensor:
        """Return the sum that a number of calls add, in the variable's dtype: integers wrap around."""
        return tf.constant(np.multiply(self.step, np.array(calls).astype(self.step.dtype)))


def counters_of(function: TracedFunction, integers: Iterable[CapturedVariable]) -> list[Counter]:
    """Return those of some variables of integers to which each call of a function only adds constants."""
    graph, inputs = function.graph, function.inputs
    counters = []
    for variable in integers:
        step = _constant_sum(graph, inputs[id(variable.handle)], variable.dtype.as_numpy_dtype)
        if step is not None:
            counters.append(Counter(variable, step))
    return counters


def _constant_sum(graph: Any, handle: Any, dtype: Any) -> np.ndarray[Any, Any] | None:
    """Return the sum of the constants added to the variable of a handle; None if more is done to it."""
    order = {operation.name: place for place, operation in enumerate(graph.get_operations())}
    uses = sorted(handle.consumers(), key=lambda operation: order[operation.name])
    total, last = np.zeros((), dtype), -1
    for operation in uses:
        if operation.type == "ReadVariableOp":
            continue
        addend = _constant_of(operation, handle, order, last)
        if addend is None:
            return None
        total, last = np.add(total, addend), order[operation.name]
    return total


def _constant_of(
    operation: Any, handle: Any, order: dict[str, int], last: int
) -> np.ndarray[Any, Any] | None:
    """Return the constant that an operation adds to a variable last changed at a place, or None."""
    constant: np.ndarray[Any, Any] | None = None
    if operation.type == "AssignAddVariableOp":
        constant = tf.get_static_value(operation.inputs[1])
    elif operation.type == "AssignVariableOp" and operation.inputs[1].op.type in ("Add", "AddV2"):
        first, second = operation.inputs[1].op.inputs
        for read, other in ((first, second), (second, first)):
            # A value that was read before the last change would undo it.
            is_read = read.op.type == "ReadVariableOp" and read.op.inputs[0] is handle
            if is_read and order[read.op.name] > last:
                constant = tf.get_static_value(other)
    return constant
