"""A function traced once, which runs on the variables that it captured or on others in their place.

TensorFlow's trace names every variable that a function reads or writes, wherever it comes from: the model, a
closure, a loss, a seed generator, a second optimizer. Called as it is, the function works on those variables,
as under Keras. Called with other handles it works on private ones, independent of the training. So one trace
serves the training loops, the validation of snapshots and the inspection.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from overlap_train._inspection.effects import Effect, find_effects
from overlap_train._inspection.graph import call_with, captures, handle_spec, written_inputs
from overlap_train._inspection.tables import find_tables
from overlap_train._inspection.without_arguments import without_arguments


@dataclass(frozen=True, eq=False)
class CapturedVariable:
    """A variable that a trace captured."""

    handle: Any  # its resource handle, the same object in every trace that captures the variable
    dtype: tf.DType
    shape: tf.TensorShape
    name: str
    written: bool  # whether the traced function may write to it
    only_set: bool = False  # whether the function sets it, and never reads it or adds to it


class TracedFunction:
    """A function traced for one signature. May be called from any thread."""

    def __init__(
        self,
        function: Callable[..., Any],
        *specs: Any,
        rows: int | None = None,
        harmless: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        """Trace a function. Belongs to the training thread, since tracing changes state that layers share.

        A function that creates variables is traced again, as by `tf.function`, because it may compute
        otherwise once it has them; not if all their handles are among the `harmless` ones. With `rows`, a
        function of a batch of dense tensors is traced for batches of that many rows, and then for any other
        number of them: the graph is that of this trace, and both have the same variables and effects.
        """
        self._function = function  # a reference, since the trace has only weak ones to variables
        self._rows = rows
        if rows is not None:
            full = tf.nest.map_structure(lambda s: tf.TensorSpec([rows, *s.shape[1:]], s.dtype), specs[0])
            self._full = TracedFunction(function, full, harmless=harmless)
        creator = _VariableCreator(function)
        self._concrete = tf.function(creator, autograph=False).get_concrete_function(*specs)
        new = creator.handle_ids
        if new and new.difference(map(id, harmless())):
            self._concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
        self.variables = captured_variables(self._concrete)
        self.effects: tuple[Effect, ...] = find_effects(self._concrete.graph)
        others = (t for t in self._concrete.captured_inputs if t.dtype == tf.resource)
        if any(handle_spec(tensor) is None for tensor in others):
            self.effects += find_tables(self._concrete)
        self.outputs: Any = self._concrete.structured_outputs

    def __call__(self, *arguments: Any) -> Any:
        """Run on the captured variables; inside another trace, add a call."""
        if self._rows is None:
            return self._concrete(*arguments)
        return self._by_rows(self._full, self._concrete, self._rows, *arguments)

    def on(self, handles: Mapping[int, Any], *arguments: Any) -> Any:
        """Run on other variables, inside another trace."""

        def run(*arguments: Any) -> Any:
            return call_with(self._concrete, arguments, handles)

        if self._rows is None:
            return run(*arguments)
        return self._by_rows(functools.partial(self._full.on, handles), run, self._rows, *arguments)

    @staticmethod
    def _by_rows(full: Callable[..., Any], other: Callable[..., Any], rows: int, batch: Any) -> Any:
        def with_static_rows(tensor: tf.Tensor) -> tf.Tensor:
            # From `ensure_shape` or `reshape` TensorFlow 2.21 concludes that every batch has that shape.
            rank = len(tensor.shape)
            result = tf.slice(tensor, [0] * rank, [rows, *[-1] * (rank - 1)])
            result.set_shape([rows, *tensor.shape[1:]])
            return result

        is_full = tf.equal(tf.shape(tf.nest.flatten(batch)[0])[0], rows)
        return tf.cond(
            is_full, lambda: full(tf.nest.map_structure(with_static_rows, batch)), lambda: other(batch)
        )

    @functools.cached_property
    def without_batch(self) -> Any:
        """A call that changes what the function changes whatever its batch is; None if that is nothing."""
        return without_arguments(self._concrete)

    def on_no_batch(self, handles: Mapping[int, Any]) -> None:
        """Make that call on other variables, inside another trace."""
        call_with(self.without_batch, (), handles)

    @property
    def graph(self) -> Any:
        """The traced graph."""
        return self._concrete.graph

    @property
    def inputs(self) -> dict[int, Any]:
        """The inputs of the graph, by the `id` of the tensor that was captured."""
        return {id(tensor): self.graph.inputs[index] for index, tensor in captures(self._concrete)}

    @property
    def constants(self) -> list[Any]:
        """The captured tensors that are no variables, as arrays."""
        return [tensor.numpy() for tensor in self._concrete.captured_inputs if tensor.dtype != tf.resource]

    @property
    def written(self) -> list[CapturedVariable]:
        """The variables to which the function may write."""
        return [variable for variable in self.variables if variable.written]


def has_any_rows(spec: Any) -> bool:
    """Whether batches are dense tensors with an unknown number of rows."""
    leaves = tf.nest.flatten(spec)
    dense = bool(leaves) and all(isinstance(s, tf.TensorSpec) and s.shape.rank for s in leaves)
    return dense and all(s.shape[0] is None for s in leaves)


class _VariableCreator:
    """A function whose variables are created at once, while it is traced.

    A `tf.function` that creates variables makes their initial values part of its first trace, which a value
    that is computed without the trace, as Keras's initializers do, need not be.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.handle_ids: set[int] = set()
        self._variables: list[Any] = []  # alive, so that no other handle gets their `id`

    def __call__(self, *arguments: Any) -> Any:
        with tf.variable_creator_scope(self._create):
            return self._function(*arguments)

    def _create(self, following: Callable[..., Any], **options: Any) -> Any:
        if not callable(options.get("initial_value")):
            return following(**options)
        with tf.init_scope():
            variable = following(**options | {"experimental_enable_variable_lifting": False})
        self._variables.append(variable)
        self.handle_ids.add(id(variable.handle))  # here, since only a replica has the handle
        return variable


def trace(function: Callable[..., Any], *specs: Any) -> TracedFunction | None:
    """Trace a function, or return None if it cannot be traced."""
    try:
        return TracedFunction(function, *specs)
    except (AttributeError, NotImplementedError, TypeError, ValueError, tf.errors.OpError):
        return None


def union(functions: Iterable[TracedFunction | None]) -> list[CapturedVariable]:
    """Return the variables of several functions, each once; written if any of them writes to it."""
    variables: dict[int, CapturedVariable] = {}
    for function in functions:
        for variable in function.variables if function is not None else ():
            other = variables.get(id(variable.handle))
            if other is None or (variable.written and not other.written):
                variables[id(variable.handle)] = variable
    return list(variables.values())


def private_handles(
    variables: Sequence[CapturedVariable], values: Sequence[tf.Tensor]
) -> dict[int, tf.Tensor]:
    """Create private variables inside a compiled function, and return their handles for `TracedFunction.on`.

    Each call of the compiled function has its own ones. They share the buffers of the values, which are
    copied when a variable is written to.
    """
    handles: dict[int, tf.Tensor] = {}
    for variable, value in zip(variables, values, strict=True):
        handle = tf.raw_ops.VarHandleOp(dtype=variable.dtype, shape=variable.shape, shared_name=_ANONYMOUS)
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        handles[id(variable.handle)] = handle
    return handles


# The name of a variable that only its handle leads to.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


def captured_variables(concrete: Any) -> tuple[CapturedVariable, ...]:
    """Return the variables that a concrete function captured, each once."""
    writes = written_inputs(concrete.graph)
    names = {id(variable.handle): variable.name for variable in concrete.graph.variables}
    variables: dict[int, CapturedVariable] = {}
    for number, (index, handle) in enumerate(captures(concrete)):
        spec = handle_spec(handle)
        uses = {operation.type for operation in concrete.graph.inputs[index].consumers()}
        # TensorFlow orders the messages of replicas by a token, which is no variable.
        is_token = uses and all(kind.startswith("Collective") for kind in uses)
        if spec is not None and not is_token:
            name = names.get(id(handle), f"variable {number}").split(":")[0]
            only_set = uses == {"AssignVariableOp"}
            variables[id(handle)] = CapturedVariable(handle, *spec, name, index in writes, only_set)
    return tuple(variables.values())
