"""Validation on the model's own variables, in step with the training and in Keras's order of events.

For what cannot be evaluated on a snapshot's private copy: `run_eagerly`, steps that draw random numbers
outside a seed generator, run Python or write summaries, metrics that compute with NumPy, and models with an
`evaluate` of their own. It runs when the epoch is delivered, on the training thread, batch by batch, with the
callbacks' hooks between the batches. A breakpoint in a step therefore works as under Keras.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

import keras

from overlap_train._data.preprocessing import Preprocess, prepare
from overlap_train._data.shards import warn_if_short
from overlap_train._data.streamed_batches import BatchStream, StreamedBatches
from overlap_train._data.validation_data import Batches
from overlap_train._inspection.traced import TracedFunction
from overlap_train._keras import data as keras_data
from overlap_train._keras import evaluation as keras_evaluation
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import routes
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState, Snapshot, Values
from overlap_train._support.printing import told
from overlap_train._training.step import require_logs
from overlap_train._validation.traced_with import TracedWith
from overlap_train._validation.validation_step import ValidationStep
from overlap_train.errors import ValidationWorkerError, worker_error
from overlap_train.records import ShardOutcome, Span, ValidationResult

__all__ = [
    "LiveRunner",
    "LiveSteps",
    "OwnEvaluation",
    "StepByStep",
    "Validates",
    "eager_step",
    "is_of_hook",
    "late_step",
    "live_failure",
    "traced_step",
]


class Validates(Protocol):
    """Makes one validation of the model as it is."""

    def __call__(self, callbacks: keras.callbacks.CallbackList) -> Mapping[str, Any]:
        """Validates, calling `on_test_*`, and returns the logs."""


class LiveRunner:
    """Stands in for a `ValidationRunner` where a validation is live. Belongs to the training thread.

    Attributes:
        in_step: why it is.
        details: of its spans.
        rewindable: whether a validation can be made again.
        runs_python: it may; the training waits for it.
    """

    live = True
    computes_here = True
    runs_python = True

    def __init__(
        self,
        validate: Validates,
        reason: str,
        state: ModelState,
        on_span: Callable[[Span], None],
        *,
        rewindable: bool = True,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._validate = validate
        self._state = state
        self._on_span = on_span
        self._close = close
        self.in_step: str | None = reason
        self.details: Mapping[str, Any] = {"shard": 0}
        self.rewindable = rewindable

    def run(self, callbacks: keras.callbacks.CallbackList, snapshot: Snapshot | None) -> ShardOutcome:
        """Validates the model as it is.

        Args:
            callbacks: whose `on_test_*` are called in between.
            snapshot: of the model as it is, for the record; None outside a fit.
        """
        start_s = time.monotonic()
        logs = self._validate(callbacks)
        thread = threading.current_thread().name
        epoch, step = (snapshot.epoch, snapshot.step) if snapshot is not None else (None, None)
        span = Span("validate", thread, start_s, time.monotonic(), epoch, step, self.details)
        self._on_span(span)
        result = self._result(logs)
        return ShardOutcome(result, span, result)

    def run_alone(self) -> ValidationResult:
        """Validates inside an epoch, where no callback is told and the training's metrics go on."""
        state = self._state
        before = state.read_metrics()
        outcome = self.run(keras.callbacks.CallbackList([]), None)
        state.set_metrics(before)
        result: ValidationResult = outcome.result
        return replace(result, metrics=keras_metrics.python_logs(result.metrics))

    def start(self, snapshot: Snapshot) -> list[Future[ShardOutcome]]:
        """Nothing: it begins when the epoch is delivered."""
        return []

    def evaluate(self, values: Values, most: int | None = None) -> ValidationResult:
        raise NotImplementedError("a live validation evaluates the model as it is: call `run`")

    def evaluate_one_batch(self, values: Values) -> None:
        """Nothing: one batch would change what it is live for."""

    def merge(self, results: list[Any], values: Values) -> ValidationResult:
        raise NotImplementedError("a live validation has no parts: call `run`")

    def warn(self, results: Sequence[Any] = ()) -> None:
        """Nothing: the validation warns when it is made."""

    def close(self) -> None:
        """Ends what the data began."""
        self._close()

    def _result(self, logs: Mapping[str, Any]) -> ValidationResult:
        return ValidationResult(dict(logs), (), self._state.read_metrics())


def is_of_hook(error: BaseException) -> bool:
    """Whether an exception comes from a callback, whose caller may wait for it, as for that of a pruner."""
    hooks = ("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end")
    codes = [getattr(keras.callbacks.CallbackList, hook).__code__ for hook in hooks]
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def live_failure(name: str, epoch: int, error: BaseException) -> ValidationWorkerError:
    """Returns what is raised for a live validation that failed."""
    where = f"on set {name!r} " if name else ""
    return worker_error(
        f"validating epoch {epoch + 1} {where}failed: {told(error)}",
        epoch=epoch,
        shard=0,
        cause=error,
    )


class LiveSteps(Protocol):
    """One validation step after another, on the model's own variables."""

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        """Makes one step on a batch as the data holds it."""


@dataclass(frozen=True)
class StepByStep:
    """Validates as `keras.Model.evaluate` does: hooks, batches, metrics.

    Attributes:
        model: built and compiled.
        step: makes one step.
        batches: the validation set.
        least: batches without which it is short of what was asked for.
    """

    model: keras.Model
    step: LiveSteps
    batches: Batches
    least: int = 1

    def __call__(self, callbacks: keras.callbacks.CallbackList) -> Mapping[str, Any]:
        """Validates; see `Validates`."""
        model, group = self.model, keras_training.steps_per_execution(self.model)
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        logs: Mapping[str, Any] = {}
        stream = self.batches.begin() if isinstance(self.batches, StreamedBatches) else self.batches.stream()
        count = self.batches.expected
        try:
            for first in itertools.count(0, group) if count is None else range(0, count, group):
                callbacks.on_test_batch_begin(first)
                done, logs = self._steps(stream, group, logs)
                if not done:
                    break
                callbacks.on_test_batch_end(first + group - 1, logs)
                if model.stop_evaluating:
                    break
            if not model.stop_evaluating:
                stream.finish()
                warn_if_short(self.batches.last_count, self.least)
                if self.batches.last_count and isinstance(self.batches, StreamedBatches):
                    self.batches.warn_of_end()
        except keras_data.OUT_OF_DATA:
            stream.finish()
            keras_data.warn_out_of_data()
        logs = keras_metrics.python_logs(keras_metrics.metrics_or_logs(model, logs))
        callbacks.on_test_end(logs)
        return logs

    def _steps(
        self, stream: BatchStream, most: int, logs: Mapping[str, Any]
    ) -> tuple[int, Mapping[str, Any]]:
        """Makes up to `most` steps; returns how many, and the last one's logs."""
        for done in range(most):
            batch = stream.draw()
            if batch is None:
                return done, logs
            logs = self.step(batch)
            require_logs("validation_step", logs)
        return most, logs


def traced_step(step: ValidationStep) -> LiveSteps:
    """Returns the traced step on the variables that it captured."""

    def run(batch: Any) -> Mapping[str, Any]:
        logs: Mapping[str, Any] = step.step(batch if step.preparation is None else step.preparation(batch))
        return logs

    return run


def late_step(step: ValidationStep, trace: Callable[[], TracedFunction]) -> LiveSteps:
    """Returns the step traced again when its first batch has come, as Keras traces it.

    For summaries, which go where the callbacks have pointed them when the step is traced.
    """

    def run(batch: Any) -> Mapping[str, Any]:
        logs: Mapping[str, Any] = trace()(batch if step.preparation is None else step.preparation(batch))
        return logs

    return run


def chosen_step(traced: LiveSteps, late: LiveSteps, held: TracedWith) -> LiveSteps:
    """Returns the traced step, or the late one if `on_test_begin` has set what the trace holds.

    Args:
        traced: made before the first validation.
        late: traced with its first batch.
        held: by the trace.
    """
    chosen: list[LiveSteps] = []

    def run(batch: Any) -> Mapping[str, Any]:
        if not chosen:
            chosen.append(traced if held.changed() is None else late)
        return chosen[0](batch)

    return run


def eager_step(function: Callable[[Any], Mapping[str, Any]], preprocess: Preprocess | None) -> LiveSteps:
    """Returns the step run operation by operation."""
    return lambda batch: function(keras_data.without_optionals(prepare(preprocess, batch)))


@dataclass
class OwnEvaluation:
    """Validates by the model's own `evaluate`, called as `keras.Model.fit` calls it.

    Attributes:
        model: whose class overrides `evaluate`.
        data: `(x, y, sample_weight)`.
        batch_size: as for `evaluate`.
        steps: as for `evaluate`.
    """

    model: keras.Model
    data: tuple[Any, Any, Any]
    batch_size: int | None
    steps: int | None

    def __call__(self, callbacks: keras.callbacks.CallbackList) -> Mapping[str, Any]:
        """Validates; see `Validates`. Dicts inside the logs stay, to be flattened with the epoch's."""
        with routes.entered(self.model, "evaluate"):
            logs: Mapping[str, Any] = keras_evaluation.evaluate_as_in_fit(
                self.model, self.data, batch_size=self.batch_size, steps=self.steps, callbacks=callbacks
            )
        return {str(name): value for name, value in logs.items()}
