"""The compiled functions of an evaluation: built around one traced step, without any data.

A step is traced once, on the model's own variables. These functions run that trace on private variables in
their place, which begin with the snapshot's values on the snapshot's buffers. So whatever the step reads, in
the model or outside it, it reads as the snapshot holds it, and cannot see the training go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from overlap_train._data.cached_batches import Fold
from overlap_train._inspection.traced import CapturedVariable, TracedFunction, private_handles
from overlap_train._snapshot import StateVariable
from overlap_train._validation.validation_step import ValidationStep

State = tuple[tf.Tensor, ...]


class EvaluationFunctions:
    """Compiled functions of snapshots and batches. May be called from any thread.

    They are made for one way of evaluating: with `fold` there is `part`; else `start`, with `some` if the
    functions draw and with `one` if they are given the batches. A `state` is that of the metrics' variables,
    and `values` are those of `variables`, in this order.

    Attributes:
        variables: what the step captured, and metrics that it never touches.
        start: of values: the state as `reset_metrics` leaves it, or as it is if Python has set it back.
        part: of values, data, first and last batch: the state and the last logs.
        one: of values, state and a batch: the same after it.
        some: of values, state, an iterator and a number: the same after as many batches of it, how many
            there were, and whether there may be more.
        result: of values and state: the metrics; None where the logs count.
        ended: of values and state: the state when a step has found no batch; None if that changes nothing.
    """

    def __init__(
        self,
        step: ValidationStep,
        metrics: Sequence[StateVariable],
        raw_spec: Any,
        *,
        fold: Fold | None = None,
        data_spec: Any = None,
        draws: bool = False,
        carries_logs: bool = False,
        finds_end: bool = False,
    ) -> None:
        self._step = step
        self._fold: Any = fold
        self._carries_logs = carries_logs
        self.variables = _with_metrics(step.variables, metrics)
        self._metrics = [_place(metric, self.variables) for metric in metrics]
        self.warm = False
        values = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.variables]
        state = tuple(tf.TensorSpec(metric.shape, metric.dtype) for metric in metrics)
        number = tf.TensorSpec([], tf.int64)
        self.start: Any = None
        self.part: Any = None
        self.one: Any = None
        self.some: Any = None
        self.result: Any = None if step.own_logs else _compile(self._result, values, state)
        self.ended: Any = None
        if finds_end and step.step.without_batch is not None:
            self.ended = _compile(self._ended, values, state)
        if fold is not None:
            self.part = _compile(self._part, values, data_spec, number, number)
        else:
            self.start = _compile(self._start, values)
            if draws:
                self.some = _compile(self._some, values, state, tf.data.IteratorSpec(raw_spec), number)
            else:
                self.one = _compile(self._one, values, state, raw_spec)

    def _part(
        self, values: Sequence[tf.Tensor], data: Any, first: tf.Tensor, stop: tf.Tensor
    ) -> tuple[State, list[tf.Tensor]]:
        handles = private_handles(self.variables, values)
        if self._step.reset is not None:
            self._step.reset.on(handles)
        logs, shapes = self._no_logs()
        logs = self._fold.over(data, first, stop, logs, lambda batch: self._run(handles, batch), shapes)
        return self._read(handles), logs

    def _one(self, values: Sequence[tf.Tensor], state: State, batch: Any) -> tuple[State, list[tf.Tensor]]:
        handles = private_handles(self.variables, self._in_state(values, state))
        logs = self._run(handles, batch)
        return self._read(handles), logs

    def _some(
        self, values: Sequence[tf.Tensor], state: State, iterator: Any, most: tf.Tensor
    ) -> tuple[State, list[tf.Tensor], tf.Tensor, tf.Tensor]:
        handles = private_handles(self.variables, self._in_state(values, state))
        logs, shapes = self._no_logs()

        def body(count: tf.Tensor, _: tf.Tensor, logs: list[tf.Tensor]) -> tuple[Any, ...]:
            batch = iterator.get_next_as_optional()
            after: tuple[Any, ...] = tf.cond(
                batch.has_value(),
                lambda: (count + 1, tf.constant(True), self._run(handles, batch.get_value())),
                lambda: (count, tf.constant(False), logs),
            )
            return after

        count, more, logs = tf.while_loop(
            lambda count, more, _: (count < most) & more,
            body,
            (tf.constant(0, tf.int64), tf.constant(True), logs),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), shapes),
            parallel_iterations=1,
        )
        return self._read(handles), logs, count, more

    def _no_logs(self) -> tuple[list[tf.Tensor], list[tf.TensorShape]]:
        """Returns what a loop carries of the logs before its first batch, and the shapes."""
        return (self._step.logs.empty(), self._step.logs.shapes) if self._carries_logs else ([], [])

    def _run(self, handles: Mapping[int, Any], batch: Any) -> list[tf.Tensor]:
        """Makes one step on private variables; returns the logs to be carried."""
        if self._step.preparation is not None:
            batch = self._step.preparation.on(handles, batch)
        logs = self._step.step.on(handles, batch)
        return self._step.logs.flat(logs) if self._carries_logs else []

    def _start(self, values: Sequence[tf.Tensor]) -> State:
        handles = self._handles_of(self._step.reset, values)
        if self._step.reset is not None:
            self._step.reset.on(handles)
        return self._read(handles)

    def _result(self, values: Sequence[tf.Tensor], state: State) -> Mapping[str, tf.Tensor]:
        assert self._step.result is not None
        handles = self._handles_of(self._step.result, self._in_state(values, state))
        logs: Mapping[str, tf.Tensor] = self._step.result.on(handles)
        return logs

    def _ended(self, values: Sequence[tf.Tensor], state: State) -> State:
        handles = private_handles(self.variables, self._in_state(values, state))
        self._step.step.on_no_batch(handles)
        return self._read(handles)

    def _in_state(self, values: Sequence[tf.Tensor], state: State) -> list[tf.Tensor]:
        """Returns the values with the metrics in another state."""
        values = list(values)
        for place, value in zip(self._metrics, state, strict=True):
            values[place] = value
        return values

    def _handles_of(
        self, function: TracedFunction | None, values: Sequence[tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """Makes private variables for a function that needs few, and for the metrics."""
        used = {id(variable.handle) for variable in function.variables} if function is not None else set()
        places = {i for i, v in enumerate(self.variables) if id(v.handle) in used}.union(self._metrics)
        order = sorted(places)
        return private_handles([self.variables[i] for i in order], [values[i] for i in order])

    def _read(self, handles: Mapping[int, Any]) -> State:
        metrics = [self.variables[place] for place in self._metrics]
        return tuple(
            tf.raw_ops.ReadVariableOp(resource=handles[id(v.handle)], dtype=v.dtype) for v in metrics
        )


def _with_metrics(
    captured: Sequence[CapturedVariable], metrics: Sequence[StateVariable]
) -> list[CapturedVariable]:
    """Returns the captured variables, and those of metrics that a step never touches."""
    handles = {id(variable.handle) for variable in captured}
    untouched = [metric for metric in metrics if not handles.intersection(map(id, metric.handles))]
    return [*captured, *(CapturedVariable(m.handles[0], m.dtype, m.shape, m.name, False) for m in untouched)]


def _place(metric: StateVariable, variables: Sequence[CapturedVariable]) -> int:
    """Returns which of the variables is one of a metric's copies."""
    copies = set(map(id, metric.handles))
    return next(i for i, variable in enumerate(variables) if id(variable.handle) in copies)


def _compile(function: Callable[..., Any], *spec: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(*spec)
