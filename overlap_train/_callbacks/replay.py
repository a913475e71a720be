"""The validations of an epoch as callbacks see them: replayed when they are done, made when they are live.

All of it belongs to the training thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import keras

from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import training as keras_training
from overlap_train._keras.data import OUT_OF_DATA, warn_out_of_data
from overlap_train._snapshot import ModelState, Snapshot, Values, same_bits
from overlap_train.records import ShardOutcome, Span, ValidationResult


class Validations(Protocol):
    """The methods of a suite that a delivery calls; see `ValidationSuite`."""

    def evaluate(self, name: str, values: Values, *, alone: bool = False) -> ValidationResult: ...
    def reads_by_python(self) -> bool: ...
    def evaluate_live(self, name: str, callbacks: keras.callbacks.CallbackList) -> ValidationResult: ...
    def live_sets(self, epoch: int) -> list[str]: ...
    def validate_live(
        self, name: str, snapshot: Snapshot, callbacks: keras.callbacks.CallbackList
    ) -> ShardOutcome | None: ...


@dataclass(frozen=True, eq=False)
class Replay:
    """Calls the hooks of an epoch's validations, with the snapshot in the model."""

    model: keras.Model
    state: ModelState
    callbacks: keras.callbacks.CallbackList
    suite: Validations
    wants_test: bool  # a callback listens to validations

    def tested(
        self, snapshot: Snapshot, results: Mapping[str, ValidationResult], live: list[str]
    ) -> tuple[dict[str, ValidationResult], tuple[Span, ...]]:
        """Replay the validations that are done and make the live ones; return all results, and spans."""
        functions = {name: result for name, result in results.items() if result.of_function}
        tested: dict[str, ValidationResult] = {}
        spans: list[Span] = []
        for name, result in results.items():
            if name not in functions:
                tested[name] = self._test(snapshot, name, result, spans, is_first=not tested)
        for name in live:
            outcome = self.suite.validate_live(name, snapshot, self.callbacks)
            if outcome is not None:
                tested[name] = outcome.result
                spans.append(outcome.span)
        # A hook around the validation may have set other weights; functions see those of `on_epoch_end`.
        if functions and (live or self.wants_test) and self.state.changed(snapshot.values):
            values = self.state.read()
            functions = {name: self._evaluate(snapshot, spans, name, values) for name in functions}
        return tested | functions, tuple(spans)

    def _test(
        self, snapshot: Snapshot, name: str, result: ValidationResult, spans: list[Span], *, is_first: bool
    ) -> ValidationResult:
        """Replay `on_test_*` around a validation that is already done; those made anew are in `spans`."""
        self.model.stop_evaluating = False
        if self.wants_test:
            begin_test(self.callbacks, self.model)
        keras_metrics.reset_others(self.model, self.state.metric_handles)
        if result.unread and not is_first:  # the first reset was made before the validation
            self.model.reset_metrics()
            pairs = zip(snapshot.values.metrics, self.state.read_metrics(), strict=True)
            if not all(same_bits(*pair) for pair in pairs):
                result = self._evaluate(snapshot, spans, name, self.state.read())
        elif self.wants_test and self.state.changed(snapshot.values):
            # Such as SwapEMAWeights: validation is to see other weights than those trained.
            result = self._evaluate(snapshot, spans, name, self.state.read())
        if self.wants_test:
            result = _replay_batches(self.model, self.state, result, self.callbacks)
        if result.metric_state:
            self.state.set_metrics(result.metric_state)
        result = read_by_python(self.model, self.state, result)
        if self.wants_test:
            self.callbacks.on_test_end(dict(result.metrics))
        return result

    def _evaluate(self, snapshot: Snapshot, spans: list[Span], name: str, values: Values) -> ValidationResult:
        """Evaluate values while the training waits; other hosts deliver nothing."""
        start_s = time.monotonic()
        result = self.suite.evaluate(name, values, alone=True)
        thread, end_s = threading.current_thread().name, time.monotonic()
        spans.append(Span("validate", thread, start_s, end_s, snapshot.epoch, snapshot.step))
        return result


def begin_test(callbacks: keras.callbacks.CallbackList, model: keras.Model) -> None:
    """Call `on_test_begin`, which cannot end a validation that is made already."""
    model.stop_evaluating = False
    callbacks.on_test_begin()
    if model.stop_evaluating:
        raise ValueError(
            "a callback's on_test_begin set stop_evaluating, and the validation is made as a whole: set it "
            "in on_test_batch_end, which is called between its batches"
        )


def _replay_batches(
    model: keras.Model, state: ModelState, result: ValidationResult, callbacks: keras.callbacks.CallbackList
) -> ValidationResult:
    """Call the hooks of the batches of a validation that is done; return it up to where they end it."""
    group = keras_training.steps_per_execution(model)
    if not result.metrics and not result.running:
        callbacks.on_test_batch_begin(0)  # of a batch that did not come
    logs: Mapping[str, Any] = {}
    try:
        for number, running in enumerate(result.running):
            callbacks.on_test_batch_begin(number * group)
            if running.state:  # another host keeps its own
                state.set_metrics(running.state)
            logs = running.logs
            callbacks.on_test_batch_end((number + 1) * group - 1, logs)
            if model.stop_evaluating:
                break
        else:
            return result
    except OUT_OF_DATA:  # which Keras takes for the end of the data
        warn_out_of_data()
    return replace(result, metrics=keras_metrics.python_logs(logs), metric_state=state.read_metrics())


def read_by_python(model: keras.Model, state: ModelState, result: ValidationResult) -> ValidationResult:
    """Return a result with the metrics as Python reads them from the model, if that is still to be done."""
    if not result.unread:
        return result
    state.set_metrics(result.metric_state)
    metrics = keras_metrics.python_logs(keras_metrics.metrics_or_logs(model, result.metrics))
    return replace(result, metrics=metrics, metric_state=state.read_metrics(), unread=False)


def evaluate_now(
    model: keras.Model, state: ModelState, suite: Validations, callbacks: keras.callbacks.CallbackList
) -> dict[str, Any]:
    """Evaluate the model as it is on the only set of a suite, as `keras.Model.evaluate` does.

    Unless that is live, `on_test_begin` has been called.
    """
    for name in suite.live_sets(0):
        return dict(suite.evaluate_live(name, callbacks).metrics)
    if suite.reads_by_python():
        model.reset_metrics()
    result = suite.evaluate("", state.read())
    result = _replay_batches(model, state, result, callbacks)
    state.set_metrics(result.metric_state)
    logs = dict(read_by_python(model, state, result).metrics)
    callbacks.on_test_end(logs)
    return logs
