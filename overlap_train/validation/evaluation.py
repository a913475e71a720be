"""E: evaluating a snapshot with the model's own `test_step`, without touching the model.

No threads here. Everything is traced beforehand on the training thread, because tracing goes through
Python state that layers share; afterwards any thread may call the compiled functions.

The step runs under a `keras.StatelessScope` that maps every variable of the model to a tensor: the
weights to the snapshot's values, the metrics to the state that a loop carries along. So the functions
capture no variable of the model and cannot see the training go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train import _keras
from overlap_train.data.shards import Batches, Shard
from overlap_train.data.streamed import BatchStream, StreamedBatches
from overlap_train.records import ValidationResult
from overlap_train.snapshot import ModelState, Values
from overlap_train.validation.metrics import unmergeable_metrics

__all__ = ["ShardResult", "SnapshotEvaluator", "Weights"]

Weights = tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]
_State = tuple[tf.Tensor, ...]


@dataclass(frozen=True)
class ShardResult:
    """What came of one part of the validation set.

    Attributes:
        state: the metrics' variables after this part, begun from their reset values; after them, the
            model's variables that validation itself changes (`SnapshotEvaluator.mutated`).
        logs: the last batch's logs, where they say more than the metrics.
        batches: how many batches there were.
        running: the metrics after each batch, if they were asked for.
    """

    state: _State
    logs: Mapping[str, tf.Tensor]
    batches: int
    running: tuple[Mapping[str, float], ...] = ()


class SnapshotEvaluator:
    """Evaluates weights on a validation set, in parts.

    Attributes:
        indivisible: why the set must be evaluated by one worker, or None if it may be divided.
        mutated: variables of the model that its `test_step` changes. They are carried from batch to batch
            as Keras would, and the caller has to put their last values back into the model.
    """

    def __init__(
        self,
        model: keras.Model,
        state: ModelState,
        step: Callable[[Any], Mapping[str, Any]],
        batches: Batches,
        *,
        batch_by_batch: bool = False,
    ) -> None:
        """Traces everything.

        Args:
            model: built and compiled.
            state: its variables.
            step: the validation step; updates metrics and returns logs.
            batches: the validation set.
            batch_by_batch: report the metrics after each batch too.
        """
        self._batch_by_batch = batch_by_batch
        self._model = model
        self._step = step
        self._variables = state
        self._batches = batches
        self.mutated: list[keras.Variable] = []
        self.indivisible: str | None = None
        self._carries_logs = False
        self._run: Callable[..., Any] | None = None
        self._empty_logs: Mapping[str, tf.Tensor] = {}
        self._inspect()
        self._trace()

    def evaluate(self, weights: Weights, part: Shard | BatchStream, held: Any = None) -> ShardResult:
        """Evaluates one part. May be called from any thread, also from several at once.

        Args:
            weights: the values of the trainable and of the non-trainable variables.
            part: batches by number, or a stream to draw from.
            held: the data in memory, if it is not to be that of the batches but a copy elsewhere.

        Raises:
            tensorflow.errors.OpError: as the data or the model raises it.
        """
        if self._batch_by_batch or isinstance(part, BatchStream):
            return self._evaluate_batches(weights, part)
        assert self._run is not None
        first, stop = (tf.constant(n, tf.int64) for n in (part.first, part.stop))
        state, logs = self._run(weights, self._held() if held is None else held, first, stop)
        return ShardResult(tuple(state), logs, part.stop - part.first)

    def held_on(self, device: str | None) -> Any:
        """Returns the data for `evaluate` on another device; None if it takes it batch by batch."""
        return self._batches.held_on(device) if self._run is not None else None  # type: ignore[union-attr]

    def read_weights(self) -> Weights:
        """Returns the present weights, on the variables' own memory. Belongs to the training thread."""
        return weights_of(self._variables.read())

    def warm_up(self, weights: Weights) -> None:
        """Runs on no batch what an evaluation will run: TensorFlow prepares a function when it first runs.

        May be called from any thread. The function that evaluates a single batch is left out: it needs one.

        Args:
            weights: from where those of the snapshots will come, since functions are prepared for that too.
        """
        if self._run is None:
            state = self._start(weights)
        else:
            number = tf.constant(0, tf.int64)
            state, _ = self._run(weights, self._held(), number, number)
        if self._carries_logs:
            return
        self._result(state if self.indivisible else self._add(state, state))

    def merge(
        self,
        results: Sequence[ShardResult],
        over_hosts: Callable[[_State], Sequence[tf.Tensor]] = tuple,
    ) -> ValidationResult:
        """Returns what `keras.Model.evaluate` would return, from the parts in their order.

        Args:
            results: of this host.
            over_hosts: adds the states of all hosts.

        Raises:
            ValueError: if there was no batch at all.
        """
        counted = over_hosts((tf.constant(sum(result.batches for result in results), tf.int64),))
        if not int(counted[0]):
            raise ValueError("the validation data is empty: there was no batch to evaluate")
        if self._carries_logs:
            return ValidationResult(_keras.python_logs(results[-1].logs), results[-1].running)
        total = results[0].state
        for result in results[1:]:
            total = self._add(total, result.state)
        total = tuple(over_hosts(total))
        return ValidationResult(_keras.python_logs(self._result(total)), results[-1].running)

    def mutated_values(self, results: Sequence[ShardResult]) -> list[tf.Tensor]:
        """Returns the last values of the variables in `mutated`."""
        return list(results[-1].state[len(self._variables.metrics) :])

    def _inspect(self) -> None:
        """Finds out, on a trace that is never run, what the step returns and what it changes."""

        def probe(batch: Any) -> Mapping[str, tf.Tensor]:
            weights = self._traced_weights()
            mapping = self._mapping(weights, self._start_state(weights))
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                logs = self._step(_keras.without_optionals(batch))
            before = {id(variable): value for variable, value in mapping}
            self.mutated = [
                variable
                for variable in (*self._variables.trainable, *self._variables.non_trainable)
                if scope.get_current_value(variable) is not before[id(variable)]
            ]
            return logs

        concrete = tf.function(probe, autograph=False).get_concrete_function(self._batches.element_spec)
        logs = concrete.structured_outputs
        if not isinstance(logs, Mapping):
            raise TypeError(
                f"validation_step returned {type(logs).__name__}; expected a dict of names and values, "
                "such as self.model.get_metrics_result()"
            )
        self._carries_logs = set(logs) != set(self._model.get_metrics_result())
        if self._carries_logs:
            self._empty_logs = {name: tf.zeros(value.shape, value.dtype) for name, value in logs.items()}
        unmergeable = unmergeable_metrics(self._model)
        if self.mutated:
            names = ", ".join(variable.path for variable in self.mutated[:3])
            self.indivisible = f"validation changes variables of the model ({names})"
        elif self._carries_logs:
            self.indivisible = "validation_step returns logs of its own, of which the last batch's count"
        elif self._batch_by_batch:
            self.indivisible = "a callback listens to the batches of the validation"
        elif unmergeable:
            self.indivisible = f"nothing is known of how to add up the state of {', '.join(unmergeable)}"

    def _trace(self) -> None:
        trainable, non_trainable = (
            tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
            for variables in (self._variables.trainable, self._variables.non_trainable)
        )
        weights = (trainable, non_trainable)
        number = tf.TensorSpec([], tf.int64)
        state = self._state_spec()
        if self._batch_by_batch or isinstance(self._batches, StreamedBatches):
            self._one = self._compile(self._run_batch, weights, state, self._batches.element_spec)
        else:
            self._run = self._compile(self._run_part, weights, self._batches.held_spec, number, number)
        self._start = self._compile(self._start_state, weights)
        self._add = self._compile(self._add_states, state, state)
        self._result = self._compile(self._result_of, state)

    def _compile(self, function: Callable[..., Any], *spec: Any) -> Callable[..., Any]:
        return tf.function(function, autograph=False).get_concrete_function(*spec)

    def _evaluate_batches(self, weights: Weights, part: Shard | BatchStream) -> ShardResult:
        state, logs, count = self._start(weights), self._empty_logs, 0
        running = []
        batches = part if isinstance(part, BatchStream) else self._batches.stream()
        while (batch := batches.draw()) is not None:
            state, logs = self._one(weights, state, batch)
            count += 1
            if self._batch_by_batch:
                running.append(_keras.python_logs(logs if self._carries_logs else self._result(state)))
        return ShardResult(tuple(state), logs, count, tuple(running))

    def _held(self) -> Any:
        assert not isinstance(self._batches, StreamedBatches)
        return self._batches.held

    def _run_part(self, weights: Weights, held: Any, first: tf.Tensor, stop: tf.Tensor) -> tuple[_State, Any]:
        assert not isinstance(self._batches, StreamedBatches)
        start = (self._start_state(weights), self._empty_logs)
        return self._batches.fold(
            held, first, stop, start, lambda carried, batch: self._run_batch(weights, carried[0], batch)
        )

    def _run_batch(self, weights: Weights, state: _State, batch: Any) -> tuple[_State, Any]:
        mapping = self._mapping(weights, state)
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            logs = self._step(_keras.without_optionals(batch))
        new_state = tuple(scope.get_current_value(v) for v in (*self._variables.metrics, *self.mutated))
        return new_state, dict(logs) if self._carries_logs else {}

    def _mapping(self, weights: Weights, state: _State) -> list[tuple[keras.Variable, tf.Tensor]]:
        variables = self._variables
        pairs = [*zip(variables.trainable, weights[0], strict=True)]
        pairs += zip(variables.non_trainable, weights[1], strict=True)
        pairs += zip((*variables.metrics, *self.mutated), state, strict=True)
        return pairs

    def _start_state(self, weights: Weights) -> _State:
        """The metrics' variables as `reset_metrics` leaves them, then the snapshot's mutated ones."""
        metrics = self._variables.metrics
        zeros = [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in metrics]
        with keras.StatelessScope(state_mapping=zeros) as scope:
            self._model.reset_metrics()
        reset = (tf.convert_to_tensor(scope.get_current_value(v), v.dtype) for v in metrics)
        variables = (*self._variables.trainable, *self._variables.non_trainable)
        own = {id(v): value for v, value in zip(variables, (*weights[0], *weights[1]), strict=True)}
        return (*reset, *(own[id(v)] for v in self.mutated))

    def _state_spec(self) -> tuple[tf.TensorSpec, ...]:
        variables = (*self._variables.metrics, *self.mutated)
        return tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)

    def _traced_weights(self) -> Weights:
        trainable, non_trainable = (
            tuple(v.value.read_value() for v in variables)
            for variables in (self._variables.trainable, self._variables.non_trainable)
        )
        return trainable, non_trainable

    def _add_states(self, first: _State, second: _State) -> _State:
        return tuple(a + b for a, b in zip(first, second, strict=True))

    def _result_of(self, state: _State) -> Mapping[str, tf.Tensor]:
        with keras.StatelessScope(state_mapping=list(zip(self._variables.metrics, state, strict=False))):
            return self._model.get_metrics_result()


def weights_of(values: Values) -> Weights:
    """Returns what an evaluator needs of a snapshot's values."""
    return values.trainable, values.non_trainable
