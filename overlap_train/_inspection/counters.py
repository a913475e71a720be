"""Which variables a traced function does nothing to but add constants, such as the states of seed generators.

So their values after any number of calls are known before the first one. Keras's recurrent layers with
dropout draw seeds in each validation step, too, and do not use them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train._inspection.traced import CapturedVariable, TracedFunction

__all__ = ["Counter", "counters_of"]


class Counter:
    """A variable of integers to which each call of a traced function adds the same."""

    def __init__(self, variable: CapturedVariable, step: np.ndarray[Any, Any]) -> None:
        self.variable = variable
        self.step = step

    def times(self, calls: int) -> tf.Tensor:
        """Returns what so many calls add, of the variable's dtype: integers wrap around."""
        dtype = self.variable.dtype
        least = int(dtype.min)
        wrapped = (self.step * calls - least) % (1 << (8 * dtype.size)) + least
        return tf.constant(np.array(wrapped, object).astype(dtype.as_numpy_dtype))


def counters_of(function: TracedFunction) -> list[Counter]:
    """Returns the variables that each call of a function does nothing to but add constants."""
    graph = function.graph
    first = len(graph.inputs) - len(function.captured)
    places = {id(handle): graph.inputs[first + index] for index, handle in enumerate(function.captured)}
    found = []
    for variable in function.written:
        step = _added(graph, places[id(variable.handle)]) if variable.dtype.is_integer else None
        if step is not None:
            found.append(Counter(variable, step))
    return found


def _added(graph: Any, handle: Any) -> np.ndarray[Any, Any] | None:
    """Returns what is added in all to the variable behind a handle; None if more is done to it."""
    order = {operation.name: place for place, operation in enumerate(graph.get_operations())}
    uses = sorted(handle.consumers(), key=lambda operation: order[operation.name])
    total, last = np.zeros((), object), -1
    for operation in uses:
        if operation.type == "ReadVariableOp":
            continue
        added = _constant_of(operation, handle, order, last)
        if added is None:
            return None
        ints = np.array(np.asarray(added).tolist(), object)  # of any size
        total, last = np.array(total + ints, object), order[operation.name]
    return total


def _constant_of(
    operation: Any, handle: Any, order: dict[str, int], last: int
) -> np.ndarray[Any, Any] | None:
    """Returns the constant that an operation adds to a variable last changed at a place, or None."""
    added: np.ndarray[Any, Any] | None = None
    if operation.type == "AssignAddVariableOp":
        added = tf.get_static_value(operation.inputs[1])
    elif operation.type == "AssignVariableOp" and operation.inputs[1].op.type in ("Add", "AddV2"):
        first, second = operation.inputs[1].op.inputs
        for read, other in ((first, second), (second, first)):
            # What was read before the last change would undo that.
            reads = read.op.type == "ReadVariableOp" and read.op.inputs[0] is handle
            if reads and order[read.op.name] > last:
                added = tf.get_static_value(other)
    return added
