"""E: evaluating a snapshot with the model's own `test_step`, without touching the model.

No threads here. Everything is traced beforehand on the training thread, because tracing goes through Python
state that layers share; afterwards any thread may evaluate. A set is evaluated in parts if the states of the
metrics are sums over batches.

A step is traced once, on the model's own variables. The compiled functions run that trace on private
variables in their place, which begin with the snapshot's values on the snapshot's buffers. So whatever the
step reads, in the model or outside it, it reads as the snapshot holds it, and cannot see the training go on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.cached_batches import CachedBatches, CachedFold
from overlap_train._data.streamed_batches import BatchStream
from overlap_train._data.validation_data import ArrayFold, Batches, Shard
from overlap_train._inspection.traced import CapturedVariable, TracedFunction, private_handles
from overlap_train._inspection.traces import Same, Traces
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState, StateVariable, Values
from overlap_train._training.step import NO_LOGS, CarriedLogs, Logs
from overlap_train._validation.validation_step import ValidationStep
from overlap_train.records import ValidationResult


def unmergeable_metrics(model: keras.Model) -> list[str]:
    """Returns the names of the metrics whose states of two parts do not add up to the state of the whole.

    A metric's state adds up if Keras's own `update_state` and `reset_state` maintain it: they count from zero
    (Mean, Sum, the confusion-matrix family, AUC, IoU, R2Score, FBetaScore). A metric with its own may do
    anything, so it counts as not mergeable.
    """

    def is_sum(metric: keras.metrics.Metric) -> bool:
        return all(map(keras_models.is_stock_method, (metric.update_state, metric.reset_state)))

    return [metric.name for metric in keras_metrics.metric_leaves(model) if not is_sum(metric)]


State = tuple[tf.Tensor, ...]


class EvaluationFunctions:
    """One traced step compiled for snapshots and batches, without any data. May be called from any thread.

    A `state` is that of the metrics' variables, and `values` are those of `variables`, in this order: what
    the step captured, and metrics that it never touches.
    """

    def __init__(
        self,
        step: ValidationStep,
        metrics: Sequence[StateVariable],
        *,
        logs: CarriedLogs = NO_LOGS,
        finds_end: bool = False,
    ) -> None:
        self._step, self._logs = step, logs
        self.variables, self._metrics = _with_metrics(step.variables, metrics)
        self.warm = False
        self.values = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.variables]
        self.state = tuple(tf.TensorSpec(metric.shape, metric.dtype) for metric in metrics)
        # Of values and state: the metrics; None where the logs count.
        self.result: Any = None if step.own_logs else compile_for(self._result, self.values, self.state)
        # Of values and state: the state when a step has found no batch; None if that changes nothing.
        self.ended: Any = None
        if finds_end and step.step.without_batch is not None:
            self.ended = compile_for(self._ended, self.values, self.state)

    def step(self, handles: Mapping[int, Any], batch: Any) -> list[tf.Tensor]:
        """Makes one step on private variables; returns the logs to be carried."""
        if self._step.preparation is not None:
            batch = self._step.preparation.on(handles, batch)
        return self._logs.flat(self._step.step.on(handles, batch))

    def _result(self, values: Sequence[tf.Tensor], state: State) -> Mapping[str, tf.Tensor]:
        assert self._step.result is not None
        handles = self.handles_of(self._step.result, self.in_state(values, state))
        logs: Mapping[str, tf.Tensor] = self._step.result.on(handles)
        return logs

    def _ended(self, values: Sequence[tf.Tensor], state: State) -> State:
        handles = private_handles(self.variables, self.in_state(values, state))
        self._step.step.on_no_batch(handles)
        return self.read(handles)

    def in_state(self, values: Sequence[tf.Tensor], state: State) -> list[tf.Tensor]:
        """Returns the values with the metrics in another state."""
        values = list(values)
        for place, value in zip(self._metrics, state, strict=True):
            values[place] = value
        return values

    def handles_of(
        self, function: TracedFunction | None, values: Sequence[tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """Makes private variables for a function that needs few, and for the metrics."""
        used = {id(variable.handle) for variable in function.variables} if function is not None else set()
        places = {i for i, v in enumerate(self.variables) if id(v.handle) in used}.union(self._metrics)
        order = sorted(places)
        return private_handles([self.variables[i] for i in order], [values[i] for i in order])

    def read(self, handles: Mapping[int, Any]) -> State:
        """Returns the state of the metrics among private variables."""
        metrics = [self.variables[place] for place in self._metrics]
        return tuple(
            tf.raw_ops.ReadVariableOp(resource=handles[id(v.handle)], dtype=v.dtype) for v in metrics
        )


class PartFunctions(EvaluationFunctions):
    """The functions for parts of what is in memory, of which `fold` takes the batches."""

    def __init__(self, *arguments: Any, fold: ArrayFold | CachedFold, data_spec: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._fold, number = fold, tf.TensorSpec([], tf.int64)
        # Of values, data, first and last batch: the state and the last logs.
        self.part = compile_for(self._part, self.values, data_spec, number, number)

    def _part(
        self, values: Sequence[tf.Tensor], data: Any, first: tf.Tensor, stop: tf.Tensor
    ) -> tuple[State, list[tf.Tensor]]:
        handles = self.reset(values)
        logs = self.loop(handles, self._fold, data, first, stop)
        return self.read(handles), logs

    def reset(self, values: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns the handles of private variables, of which the metrics are reset."""
        handles = private_handles(self.variables, values)
        if self._step.reset is not None:
            self._step.reset.on(handles)
        return handles

    def loop(
        self, handles: Mapping[int, Any], fold: Any, data: Any, first: tf.Tensor, stop: tf.Tensor
    ) -> list[tf.Tensor]:
        """Makes steps on private variables with batches in memory; returns the last one's logs."""
        _, logs = tf.while_loop(
            lambda index, _: index < stop,
            lambda index, _: (index + 1, self.step(handles, fold.batch(data, index))),
            (first, self._logs.empty()),
            shape_invariants=(tf.TensorShape([]), self._logs.shapes),
            parallel_iterations=1,
        )
        return logs


def _with_metrics(
    captured: Sequence[CapturedVariable], metrics: Sequence[StateVariable]
) -> tuple[list[CapturedVariable], list[int]]:
    """Returns the captured variables and those of metrics that a step never touches; where metrics are."""
    variables, places = list(captured), {id(variable.handle): i for i, variable in enumerate(captured)}
    for metric in metrics:
        if not places.keys() & set(map(id, metric.handles)):
            places[id(metric.handles[0])] = len(variables)
            handle = metric.handles[0]
            variables.append(CapturedVariable(handle, metric.dtype, metric.shape, metric.name, written=False))
    return variables, [next(places[id(h)] for h in m.handles if id(h) in places) for m in metrics]


def compile_for(function: Callable[..., Any], *spec: Any) -> Any:
    """Returns a function compiled by TensorFlow for arguments of such specs."""
    return tf.function(function, autograph=False).get_concrete_function(*spec)


@dataclass(frozen=True)
class Running:
    """What a callback that listens to batches sees after one of them."""

    logs: Logs
    state: State


@dataclass(frozen=True)
class ShardResult:
    """What came of one part of the validation set."""

    state: State  # the metrics' variables after this part, begun from their reset values
    logs: Logs  # the last batch's logs, where they count
    batches: int
    # after each batch, or each `steps_per_execution` of them, if it was asked for
    running: tuple[Running, ...] = ()


class SnapshotEvaluator:
    """Evaluates snapshots on a validation set in memory, in parts, each in one compiled call."""

    def __init__(
        self,
        model: keras.Model,
        state: ModelState,
        step: ValidationStep,
        batches: Batches,
        *,
        listened: bool = False,
    ) -> None:
        self._step = step
        self._batches: Any = batches
        self._listened = listened  # whether a callback listens to the batches
        self._logs = step.logs if step.own_logs or listened else NO_LOGS
        self._finds_end = batches.finds_end and keras_training.counts_without_batch(model)
        self.by_python = step.by_python
        self.changed_metric = functools.partial(step.changed, model)
        self.indivisible = self._find_obstacle(model)
        metrics = tuple(Same(variable.handles[0]) for variable in state.metrics)
        key = (Same(step), *self._kind(), Same(self._logs), self._finds_end, metrics)
        # Those of an earlier evaluation if they are the same.
        self._functions = Traces.of(model, "test").get(key, lambda: self._make_functions(state.metrics))
        places = {id(handle): i for i, v in enumerate(state.variables) for handle in v.handles}
        handles = [id(variable.handle) for variable in self._functions.variables]
        self._places = [places[handle] for handle in handles]
        counters = {id(counter.variable.handle): counter for counter in step.counters}
        self._counters = [(i, counters[handle]) for i, handle in enumerate(handles) if handle in counters]

    def _kind(self) -> tuple[Hashable, ...]:
        """Returns what the functions depend on next to the step."""
        return self._batches.fold, str(self._batches.data_spec)

    def _make_functions(self, metrics: Sequence[StateVariable]) -> Any:
        fold, data_spec = self._batches.fold, self._batches.data_spec
        options = {"logs": self._logs, "finds_end": self._finds_end}
        return PartFunctions(self._step, metrics, fold=fold, data_spec=data_spec, **options)

    def evaluate(self, values: Values, part: Shard | BatchStream, data: Any = None) -> ShardResult:
        """Evaluates one part. May be called from any thread, also from several at once.

        `data` is that of `data_on`; without it the data is taken from where the batches are.
        """
        return self._evaluate(self._variables(values), part, data)

    def _evaluate(self, variables: list[tf.Tensor], part: Any, data: Any) -> ShardResult:
        # Counters, which have been counted ahead, go back to where they stand before the last batches.
        for place, counter in self._counters:
            variables[place] = variables[place] + counter.times(part.first - self.count())
        first, stop = (tf.constant(n, tf.int64) for n in (part.first, part.stop))
        state, logs = self._run(variables, self._batches.held if data is None else data, first, stop)
        return ShardResult(tuple(state), self._logs.packed(logs), part.stop - part.first)

    def _run(self, *arguments: Any) -> Any:
        """Calls what evaluates a part of batches in memory."""
        return self._functions.part(*arguments)

    def count(self) -> int:
        """Returns the number of batches in memory."""
        batches = self._batches
        count: int = batches.fill() if isinstance(batches, CachedBatches) else batches.num_batches
        return count

    def count_ahead(self, state: ModelState) -> None:
        """Adds to the counters of a model what a validation will add to them. On the training thread."""
        for place, counter in self._counters:
            variable = state.variables[self._places[place]]
            variable.assign(variable.read() + counter.times(self.count()))

    def data_on(self, device: str | None) -> Any:
        """Returns the data for `evaluate` on another device; None if it takes it batch by batch."""
        return self._batches.data_on(device)

    def warm_up(self, values: Values) -> None:
        """Runs on no batch what an evaluation will run: TensorFlow prepares a function when it first runs.

        May be called from any thread.
        """
        functions, variables = self._functions, self._variables(values)
        state = self._begin(variables)
        if functions.result is not None:
            functions.result(variables, state)
        functions.warm = True

    def _begin(self, variables: list[tf.Tensor]) -> State:
        """Returns the state before the first batch."""
        number = tf.constant(0, tf.int64)
        state: State = self._functions.part(variables, self._batches.blank, number, number)[0]
        return state

    @property
    def is_warm(self) -> bool:
        """Whether an evaluation has run these functions before."""
        return self._functions.warm

    def merge(
        self,
        results: Sequence[ShardResult],
        values: Values,
        over_hosts: Callable[[State], Sequence[tf.Tensor]] = tuple,
    ) -> ValidationResult:
        """Returns what `keras.Model.evaluate` would return, from the parts in their order.

        Without any batch that is no value, with the metrics as they are reset.
        """
        (count,) = over_hosts((tf.constant(sum(result.batches for result in results), tf.int64),))
        if not int(count):
            return ValidationResult({}, (), results[0].state, unread=self.by_python)
        last, ended = results[-1], self._functions.ended
        if ended is not None and self._batches.steps is not None and int(count) >= self._batches.steps:
            ended = None  # no step has found the end of the data
        total = results[0].state
        for result in results[1:]:  # some small additions, run sooner than compiled
            total = tuple(a + b for a, b in zip(total, result.state, strict=True))
        total = tuple(over_hosts(total))
        if ended is not None:
            total = tuple(ended(self._variables(values), total))
        if self.by_python:
            return ValidationResult(last.logs, last.running, total, unread=True)
        if self._step.own_logs:  # of a set that is not divided
            return ValidationResult(keras_metrics.python_logs(last.logs), last.running, total)
        metrics = keras_metrics.python_logs(self._functions.result(self._variables(values), total))
        return ValidationResult(metrics, last.running, total)

    def _find_obstacle(self, model: keras.Model) -> str | None:
        """Returns why the parts of a set do not add up to the whole, or None."""
        key = ("unmergeable", tuple(map(Same, keras_metrics.metric_leaves(model))))
        unmergeable = Traces.of(model, "test").get(key, lambda: unmergeable_metrics(model))
        if self.by_python:
            return "custom code computes the metrics"
        if self._step.own_logs:
            return "validation_step returns logs of its own, of which the last batch's count"
        if self._listened:
            return "a callback listens to the batches of the validation"
        if unmergeable:
            return f"nothing is known of how to add up the state of {', '.join(unmergeable)}"
        return None

    def _variables(self, values: Values) -> list[tf.Tensor]:
        """Returns the values of the variables that the step captured."""
        flat = values.flat()
        return [flat[place] for place in self._places]
