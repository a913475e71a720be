"""A function traced once, which runs on the variables that it captured or on others in their place.

TensorFlow's trace names every variable that a function reads or writes, wherever it came from: the model, a
closure, a loss, a seed generator, a second optimizer. Called as it is, the function works on those variables,
as under Keras. Called with other handles it works on private ones and cannot see the training go on. So one
trace serves the training loops, the validation of snapshots and the inspection alike.

Of some variables the values after any number of calls are known before the first one: those to which a
function only adds constants, such as the states of seed generators. Keras's recurrent layers with dropout
draw seeds in each validation step, too, and do not use them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train._inspection.effects import Effect, find_effects, find_tables
from overlap_train._inspection.graph import call_with, handle_spec, written_inputs

__all__ = [
    "CapturedVariable",
    "Counter",
    "TracedByRows",
    "TracedFunction",
    "captured_variables",
    "counters_of",
    "has_any_rows",
    "private_handles",
    "trace",
    "traced_step",
    "union",
]


@dataclass(frozen=True, eq=False)
class CapturedVariable:
    """A variable that a trace captured."""

    handle: Any  # its resource handle; the same object wherever this variable is captured
    dtype: tf.DType
    shape: tf.TensorShape
    name: str
    written: bool  # whether the traced function may write to it
    only_set: bool = False  # whether it is surely set, and never read or added to


class TracedFunction:
    """A function traced for one signature. Call it from any thread; the variables are whose they are."""

    def __init__(
        self,
        function: Callable[..., Any],
        *specs: Any,
        harmless: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        """Traces a function. Belongs to the training thread, since tracing changes state that layers share.

        A function that makes variables is traced again, as by `tf.function`: it may compute otherwise once it
        has them.
        """
        self._function = function  # holds what the trace refers to weakly
        making = _Making(function)
        self._concrete = tf.function(making, autograph=False).get_concrete_function(*specs)
        if making.made and making.made.difference(map(id, harmless())):
            self._concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
        self.variables = captured_variables(self._concrete)
        self.effects: tuple[Effect, ...] = (*find_effects(self._concrete.graph), *find_tables(self._concrete))
        self.outputs: Any = self._concrete.structured_outputs

    def __call__(self, *arguments: Any) -> Any:
        """Runs on the variables that were captured; inside another trace, adds a call to it."""
        return self._concrete(*arguments)

    def on(self, handles: Mapping[int, Any], *arguments: Any) -> Any:
        """Runs on other variables, inside another trace."""
        captured = [handles.get(id(tensor), tensor) for tensor in self._concrete.captured_inputs]
        return call_with(self._concrete, arguments, captured)

    @property
    def graph(self) -> Any:
        """What was traced."""
        return self._concrete.graph

    @property
    def captured(self) -> list[Any]:
        """The tensors that it captured, in the order of the last inputs of its graph."""
        return list(self._concrete.captured_inputs)

    @property
    def constants(self) -> list[Any]:
        """The tensors that it captured and that are no variables, as arrays."""
        return [tensor.numpy() for tensor in self._concrete.captured_inputs if tensor.dtype != tf.resource]

    @property
    def written(self) -> list[CapturedVariable]:
        """The variables to which it may write."""
        return [variable for variable in self.variables if variable.written]


class TracedByRows(TracedFunction):
    """A function of a batch traced for batches of so many rows, and again for any other number of them.

    What is asked of it is answered by the second trace; the variables and effects are those of both.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        spec: Any,
        *,
        rows: int,
        harmless: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        """Traces a function of batches of `spec`, dense tensors whose number of rows is not known."""
        self._rows = rows
        full = tf.nest.map_structure(lambda s: tf.TensorSpec([rows, *s.shape[1:]], s.dtype), spec)
        self._full = TracedFunction(function, full, harmless=harmless)
        super().__init__(function, spec, harmless=harmless)

    def __call__(self, *arguments: Any) -> Any:
        return self._by_rows(self._full, super().__call__, *arguments)

    def on(self, handles: Mapping[int, Any], *arguments: Any) -> Any:
        full, other = (functools.partial(on, handles) for on in (self._full.on, super().on))
        return self._by_rows(full, other, *arguments)

    def _by_rows(self, full: Callable[..., Any], other: Callable[..., Any], batch: Any) -> Any:
        rows = self._rows

        def known(tensor: tf.Tensor) -> tf.Tensor:
            # From `ensure_shape` or `reshape` TensorFlow 2.21 concludes that every batch has that shape.
            rank = len(tensor.shape)
            same = tf.slice(tensor, [0] * rank, [rows, *[-1] * (rank - 1)])
            same.set_shape([rows, *tensor.shape[1:]])
            return same

        is_full = tf.equal(tf.shape(tf.nest.flatten(batch)[0])[0], rows)
        return tf.cond(is_full, lambda: full(tf.nest.map_structure(known, batch)), lambda: other(batch))


def traced_step(
    function: Callable[..., Any], spec: Any, rows: int | None, *, harmless: Callable[[], Iterable[Any]]
) -> TracedFunction:
    """Returns a function of a batch traced; with `rows` for batches of so many, and again for others."""
    if rows is None:
        return TracedFunction(function, spec, harmless=harmless)
    return TracedByRows(function, spec, rows=rows, harmless=harmless)


def has_any_rows(spec: Any) -> bool:
    """Whether batches are dense tensors whose number of rows is not known."""
    leaves = tf.nest.flatten(spec)
    dense = bool(leaves) and all(isinstance(s, tf.TensorSpec) and s.shape.rank for s in leaves)
    return dense and all(s.shape[0] is None for s in leaves)


class _Making:
    """A function that makes the variables it needs at once, while it is traced.

    A `tf.function` that creates variables makes their initial values part of its first trace. A value that is
    computed without the trace, as Keras gives it, need not be.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.made: set[int] = set()
        self._variables: list[Any] = []  # alive, so that no other one has its `id`

    def __call__(self, *arguments: Any) -> Any:
        with tf.variable_creator_scope(self._create):
            return self._function(*arguments)

    def _create(self, following: Callable[..., Any], **options: Any) -> Any:
        if not callable(options.get("initial_value")):
            return following(**options)
        with tf.init_scope():
            variable = following(**options | {"experimental_enable_variable_lifting": False})
        self._variables.append(variable)
        self.made.add(id(variable.handle))
        return variable


def trace(function: Callable[..., Any], *specs: Any) -> TracedFunction | None:
    """Returns a function traced, or None if it cannot be."""
    try:
        return TracedFunction(function, *specs)
    except (AttributeError, NotImplementedError, TypeError, ValueError, tf.errors.OpError):
        return None


def union(functions: Iterable[TracedFunction | None]) -> list[CapturedVariable]:
    """Returns the variables of several functions, each once; written if any of them writes to it."""
    found: dict[int, CapturedVariable] = {}
    for function in functions:
        for variable in function.variables if function is not None else ():
            known = found.get(id(variable.handle))
            if known is None or (variable.written and not known.written):
                found[id(variable.handle)] = variable
    return list(found.values())


def private_handles(
    variables: Sequence[CapturedVariable], values: Sequence[tf.Tensor]
) -> dict[int, tf.Tensor]:
    """Makes private variables inside a compiled function, and returns their handles for `TracedFunction.on`.

    Each call of the compiled function makes new ones, which end with it. They take over the buffers of the
    values, so that nothing is copied until one is written to.
    """
    handles: dict[int, tf.Tensor] = {}
    for variable, value in zip(variables, values, strict=True):
        handle = tf.raw_ops.VarHandleOp(dtype=variable.dtype, shape=variable.shape, shared_name=_ANONYMOUS)
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        handles[id(variable.handle)] = handle
    return handles


# By this name TensorFlow makes a variable that only the holder of its handle can reach.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


def captured_variables(concrete: Any) -> tuple[CapturedVariable, ...]:
    """Returns the variables that a concrete function captured, each once."""
    captured = concrete.captured_inputs
    first = len(concrete.graph.inputs) - len(captured)
    writes = written_inputs(concrete.graph)
    names = {id(variable.handle): variable.name for variable in concrete.graph.variables}
    found: dict[int, CapturedVariable] = {}
    for index, handle in enumerate(captured):
        spec = handle_spec(handle)
        if spec is not None:
            dtype, shape = spec
            name = names.get(id(handle), f"variable {index}").split(":")[0]
            inner = concrete.graph.inputs[first + index]
            uses = {operation.type for operation in inner.consumers()}
            if uses and all(kind.startswith("Collective") for kind in uses):
                continue  # the token by which TensorFlow orders what replicas tell each other
            found[id(handle)] = CapturedVariable(
                handle, dtype, shape, name, first + index in writes, uses == {"AssignVariableOp"}
            )
    return tuple(found.values())


class Counter:
    """A variable of integers to which each call of a traced function adds the same."""

    def __init__(self, variable: CapturedVariable, step: np.ndarray[Any, Any]) -> None:
        self.variable = variable
        self.step = step

    def times(self, calls: int) -> tf.Tensor:
        """Returns what a number of calls add, in the variable's dtype: integers wrap around."""
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
