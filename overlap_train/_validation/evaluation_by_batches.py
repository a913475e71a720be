"""Evaluating batches that are drawn anew for each validation, or to which a callback listens."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.iterators import drawn_from, step_through
from overlap_train._data.streamed_batches import BatchStream, StreamedBatches
from overlap_train._data.validation_data import Batches
from overlap_train._inspection.traced import private_handles
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState, StateVariable
from overlap_train._validation.evaluation import (
    EvaluationFunctions,
    Running,
    ShardResult,
    SnapshotEvaluator,
    State,
    compile_for,
)
from overlap_train._validation.validation_step import ValidationStep

# Between two calls that draw batches a worker can be told that its validation has been given up.
_MOST_AT_ONCE = 64


class BatchFunctions(EvaluationFunctions):
    """The functions for batches: `some` if they draw them, and `one` if they are given them."""

    def __init__(self, *arguments: Any, raw_spec: Any, draws: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        values, state = self.values, self.state
        # Of values: the state as `reset_metrics` leaves it, or as it is if Python has set it back.
        self.start = compile_for(self._start, values)
        if draws:
            # Of values, state, an iterator and a number: the state and the last logs after as many batches of
            # it, how many there were, and whether there may be more.
            number = tf.TensorSpec([], tf.int64)
            self.some = compile_for(self._some, values, state, tf.data.IteratorSpec(raw_spec), number)
        else:
            # Of values, state and a batch: the state and the logs after it.
            self.one = compile_for(self._one, values, state, raw_spec)

    def _start(self, values: Sequence[tf.Tensor]) -> State:
        handles = self.handles_of(self._step.reset, values)
        if self._step.reset is not None:
            self._step.reset.on(handles)
        return self.read(handles)

    def _one(self, values: Sequence[tf.Tensor], state: State, batch: Any) -> tuple[State, list[tf.Tensor]]:
        handles = private_handles(self.variables, self.in_state(values, state))
        logs = self.step(handles, batch)
        return self.read(handles), logs

    def _some(
        self, values: Sequence[tf.Tensor], state: State, iterator: Any, most: tf.Tensor
    ) -> tuple[State, list[tf.Tensor], tf.Tensor, tf.Tensor]:
        handles = private_handles(self.variables, self.in_state(values, state))
        count, more, logs = step_through(
            functools.partial(drawn_from, iterator),
            lambda batch, _: self.step(handles, batch),
            most,
            self._logs.empty(),
            self._logs.shapes,
        )
        return self.read(handles), logs, count, more


class BatchEvaluator(SnapshotEvaluator):
    """Evaluates batches one by one, or those of a dataset in calls that draw them, several at once."""

    def __init__(
        self,
        model: keras.Model,
        state: ModelState,
        step: ValidationStep,
        batches: Batches,
        *,
        by_device: bool = False,
        listened: bool = False,
    ) -> None:
        together = isinstance(batches, StreamedBatches) and batches.is_dataset and not batches.in_order
        self._draws = together and not (listened or by_device)
        self._group = keras_training.steps_per_execution(model)
        super().__init__(model, state, step, batches, listened=listened)

    def _kind(self) -> tuple[Hashable, ...]:
        # One by one, batches of another kind may have the same step, traced for any size.
        return str(self._batches.raw_spec), self._draws

    def _make_functions(self, metrics: Sequence[StateVariable]) -> Any:
        raw_spec, options = self._batches.raw_spec, {"logs": self._logs, "finds_end": self._finds_end}
        return BatchFunctions(self._step, metrics, raw_spec=raw_spec, draws=self._draws, **options)

    def data_on(self, device: str | None) -> None:
        """Returns None: the data is taken batch by batch."""

    def _begin(self, variables: list[tf.Tensor]) -> State:
        state: State = self._functions.start(variables)  # the function of a single batch would need one
        return state

    def _evaluate(self, variables: list[tf.Tensor], part: Any, data: Any) -> ShardResult:
        if not isinstance(part, BatchStream):
            fold, held = self._batches.fold, self._batches.held
            return self._one_by_one(variables, (fold.batch(held, i) for i in range(part.stop)))
        return self._many_at_once(variables, part) if self._draws else self._one_by_one(variables, part)

    def _one_by_one(self, variables: list[tf.Tensor], batches: Iterable[Any]) -> ShardResult:
        state, logs, count = self._functions.start(variables), self._logs.empty(), 0
        running: list[Running] = []
        for batch in batches:
            state, logs = self._functions.one(variables, state, batch)
            count += 1
            if self._listened and count % self._group == 0:
                running.append(Running(self._logs.packed(logs), tuple(state)))
        if self._listened and count % self._group:
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
