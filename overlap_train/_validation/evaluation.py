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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.cached_batches import CachedBatches, CachedFold
from overlap_train._data.iterators import drawn_from, step_through
from overlap_train._data.streamed_batches import BatchStream, StreamedBatches
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
    the step captured, and metrics that it never touches. With `fold` there is `part`; else `start`, with
    `some` if the functions draw and with `one` if they are given the batches.
    """

    def __init__(
        self,
        step: ValidationStep,
        metrics: Sequence[StateVariable],
        raw_spec: Any,
        *,
        fold: ArrayFold | CachedFold | None = None,
        data_spec: Any = None,
        draws: bool = False,
        logs: CarriedLogs = NO_LOGS,
        finds_end: bool = False,
    ) -> None:
        self._step = step
        self._fold: Any = fold
        self._logs = logs
        self.variables, self._metrics = _with_metrics(step.variables, metrics)
        self.warm = False
        values = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.variables]
        state = tuple(tf.TensorSpec(metric.shape, metric.dtype) for metric in metrics)
        number = tf.TensorSpec([], tf.int64)
        # Of values: the state as `reset_metrics` leaves it, or as it is if Python has set it back.
        self.start: Any = None
        # Of values, data, first and last batch: the state and the last logs.
        self.part: Any = None
        # Of values, state and a batch: the same after it.
        self.one: Any = None
        # Of values, state, an iterator and a number: the same after as many batches of it, how many there
        # were, and whether there may be more.
        self.some: Any = None
        # Of values and state: the metrics; None where the logs count.
        self.result: Any = None if step.own_logs else compile_for(self._result, values, state)
        # Of values and state: the state when a step has found no batch; None if that changes nothing.
        self.ended: Any = None
        if finds_end and step.step.without_batch is not None:
            self.ended = compile_for(self._ended, values, state)
        if fold is not None:
            self.part = compile_for(self._part, values, data_spec, number, number)
        else:
            self.start = compile_for(self._start, values)
            if draws:
                self.some = compile_for(self._some, values, state, tf.data.IteratorSpec(raw_spec), number)
            else:
                self.one = compile_for(self._one, values, state, raw_spec)

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
            lambda index, _: (index + 1, self._run(handles, fold.batch(data, index))),
            (first, self._logs.empty()),
            shape_invariants=(tf.TensorShape([]), self._logs.shapes),
            parallel_iterations=1,
        )
        return logs

    def _one(self, values: Sequence[tf.Tensor], state: State, batch: Any) -> tuple[State, list[tf.Tensor]]:
        handles = private_handles(self.variables, self._in_state(values, state))
        logs = self._run(handles, batch)
        return self.read(handles), logs

    def _some(
        self, values: Sequence[tf.Tensor], state: State, iterator: Any, most: tf.Tensor
    ) -> tuple[State, list[tf.Tensor], tf.Tensor, tf.Tensor]:
        handles = private_handles(self.variables, self._in_state(values, state))
        count, more, logs = step_through(
            functools.partial(drawn_from, iterator),
            lambda batch, _: self._run(handles, batch),
            most,
            self._logs.empty(),
            self._logs.shapes,
        )
        return self.read(handles), logs, count, more

    def _run(self, handles: Mapping[int, Any], batch: Any) -> list[tf.Tensor]:
        """Makes one step on private variables; returns the logs to be carried."""
        if self._step.preparation is not None:
            batch = self._step.preparation.on(handles, batch)
        return self._logs.flat(self._step.step.on(handles, batch))

    def _start(self, values: Sequence[tf.Tensor]) -> State:
        handles = self._handles_of(self._step.reset, values)
        if self._step.reset is not None:
            self._step.reset.on(handles)
        return self.read(handles)

    def _result(self, values: Sequence[tf.Tensor], state: State) -> Mapping[str, tf.Tensor]:
        assert self._step.result is not None
        handles = self._handles_of(self._step.result, self._in_state(values, state))
        logs: Mapping[str, tf.Tensor] = self._step.result.on(handles)
        return logs

    def _ended(self, values: Sequence[tf.Tensor], state: State) -> State:
        handles = private_handles(self.variables, self._in_state(values, state))
        self._step.step.on_no_batch(handles)
        return self.read(handles)

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

    def read(self, handles: Mapping[int, Any]) -> State:
        """Returns the state of the metrics among private variables."""
        metrics = [self.variables[place] for place in self._metrics]
        return tuple(
            tf.raw_ops.ReadVariableOp(resource=handles[id(v.handle)], dtype=v.dtype) for v in metrics
        )


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


# Between two calls that draw batches a worker can be told that its validation has been given up.
_MOST_AT_ONCE = 64


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
    """Evaluates snapshots on a validation set, in parts.

    Batches in memory are evaluated in one compiled call a part; batches that are drawn anew, or to which a
    callback listens, one by one; those of a dataset in calls that draw them, several workers at once.
    """

    def __init__(
        self,
        model: keras.Model,
        state: ModelState,
        step: ValidationStep,
        batches: Batches,
        *,
        batch_by_batch: bool = False,
        by_device: bool = False,
    ) -> None:
        self._step = step
        self._batches: Any = batches
        self._batch_by_batch = batch_by_batch
        streamed = batches if isinstance(batches, StreamedBatches) else None
        self._in_memory = streamed is None and not batch_by_batch
        apart = batch_by_batch or by_device
        self._draws = streamed is not None and streamed.is_dataset and not (streamed.in_order or apart)
        self._group = keras_training.steps_per_execution(model)
        self._logs = step.logs if step.own_logs or batch_by_batch else NO_LOGS
        self._finds_end = batches.finds_end and keras_training.counts_without_batch(model)
        self.by_python = step.by_python
        self.changed_metric = functools.partial(step.changed, model)
        self.indivisible = self._find_obstacle(model)
        self._functions = self._build(model, state)
        places = {id(handle): i for i, v in enumerate(state.variables) for handle in v.handles}
        handles = [id(variable.handle) for variable in self._functions.variables]
        self._places = [places[handle] for handle in handles]
        counters = {id(counter.variable.handle): counter for counter in step.counters}
        self._counters = [(i, counters[handle]) for i, handle in enumerate(handles) if handle in counters]

    def evaluate(self, values: Values, part: Shard | BatchStream, data: Any = None) -> ShardResult:
        """Evaluates one part. May be called from any thread, also from several at once.

        `data` is that of `data_on`; without it the data is taken from where the batches are.
        """
        variables = self._variables(values)
        if isinstance(part, BatchStream):
            if not self._draws:
                return self._one_by_one(variables, part)
            return self._many_at_once(variables, part)
        if not self._in_memory:
            fold, held = self._batches.fold, self._batches.held
            return self._one_by_one(variables, (fold.batch(held, i) for i in range(part.stop)))
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
        return self._batches.data_on(device) if self._in_memory else None

    def warm_up(self, values: Values) -> None:
        """Runs on no batch what an evaluation will run: TensorFlow prepares a function when it first runs.

        May be called from any thread. The function that evaluates a single batch is left out: it needs one.
        """
        functions, variables = self._functions, self._variables(values)
        if self._in_memory:
            number = tf.constant(0, tf.int64)
            state, _ = functions.part(variables, self._batches.blank, number, number)
        else:
            state = functions.start(variables)
        if functions.result is not None:
            functions.result(variables, state)
        functions.warm = True

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
        if self._batch_by_batch:
            return "a callback listens to the batches of the validation"
        if unmergeable:
            return f"nothing is known of how to add up the state of {', '.join(unmergeable)}"
        return None

    def _build(self, model: keras.Model, state: ModelState) -> EvaluationFunctions:
        """Returns the compiled functions, those of an earlier evaluation if they are the same."""
        batches = self._batches
        fold, data_spec = (batches.fold, batches.data_spec) if self._in_memory else (None, None)
        metrics = tuple(Same(variable.handles[0]) for variable in state.metrics)
        # One by one, batches of another kind may have the same step, traced for any size.
        kind = str(data_spec if self._in_memory else batches.raw_spec)
        return Traces.of(model, "test").get(
            (Same(self._step), fold, kind, self._draws, Same(self._logs), self._finds_end, metrics),
            lambda: EvaluationFunctions(
                self._step,
                state.metrics,
                batches.raw_spec,
                fold=fold,
                data_spec=data_spec,
                draws=self._draws,
                logs=self._logs,
                finds_end=self._finds_end,
            ),
        )

    def _one_by_one(self, variables: list[tf.Tensor], batches: Iterable[Any]) -> ShardResult:
        state, logs, count = self._functions.start(variables), self._logs.empty(), 0
        running: list[Running] = []
        for batch in batches:
            state, logs = self._functions.one(variables, state, batch)
            count += 1
            if self._batch_by_batch and count % self._group == 0:
                running.append(Running(self._logs.packed(logs), tuple(state)))
        if self._batch_by_batch and count % self._group:
            running.append(Running(self._logs.packed(logs), tuple(state)))
        return ShardResult(tuple(state), self._logs.packed(logs), count, tuple(running))

    def _many_at_once(self, variables: list[tf.Tensor], stream: BatchStream) -> ShardResult:
        """Evaluates a worker's share of a pass in calls that draw the batches; side by side with others.

        A call that is given a single batch costs some tenths of a millisecond, as much as a small batch.
        """
        state, logs, count = self._functions.start(variables), self._logs.empty(), 0

        def draw(iterator: Any, most: int) -> tuple[int, bool]:
            nonlocal state, logs, count
            limit = tf.constant(most, tf.int64)
            state, last_logs, batches, more = self._functions.some(variables, state, iterator, limit)
            logs = last_logs if int(batches) else logs
            count += int(batches)
            return int(batches), bool(more)

        while stream.draw_some(draw, _MOST_AT_ONCE):
            pass
        return ShardResult(tuple(state), self._logs.packed(logs), count)

    def _variables(self, values: Values) -> list[tf.Tensor]:
        """Returns the values of the variables that the step captured."""
        flat = values.flat()
        return [flat[place] for place in self._places]
