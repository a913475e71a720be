"""Validation on the model's own variables, in step with the training and in Keras's order of events.

For what cannot be evaluated on a snapshot's private copy: steps that draw random numbers outside a seed
generator, run Python or write summaries, metrics that compute with NumPy, and models with an `evaluate` of
their own. Keras's own `evaluate` runs when the epoch is delivered, on the training thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import keras

from overlap_train._keras import callers
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras.evaluation import FitEvaluation, Pass
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._support.reasons import Reason
from overlap_train._training.step import require_logs
from overlap_train._validation.pending import Runner, span_since
from overlap_train._validation.replica_metrics import counted
from overlap_train.records import ShardOutcome, Span, ValidationResult

Validates = Callable[[keras.callbacks.CallbackList], Mapping[str, Any]]
"""Makes one validation of the model as it is, calling `on_test_*`, and returns the logs."""


@dataclass(eq=False)
class LiveRunner(Runner):
    """Validates the model as it is, when its epoch is delivered. Belongs to the training thread.

    `function` is the name of an evaluation function that does so; None for a validation set. `end` ends what
    the data began.
    """

    _validate: Validates
    _state: ModelState
    _on_span: Callable[[Span], None]
    in_step: Reason | None
    _: KW_ONLY
    function: str | None = None
    rewindable: bool = True
    end: Callable[[], None] = lambda: None

    def run(self, callbacks: keras.callbacks.CallbackList, snapshot: Snapshot | None) -> ShardOutcome:
        """Validates the model as it is."""
        start_s = time.monotonic()
        logs = dict(self._validate(callbacks))
        if self.function is None:
            result = ValidationResult(logs, (), self._state.read_metrics())
            span = span_since(start_s, snapshot, shard=0)
        else:
            result = ValidationResult(logs, of_function=True)
            span = span_since(start_s, snapshot, function=self.function)
        self._on_span(span)
        return ShardOutcome(result, span)

    def run_alone(self) -> ValidationResult:
        """Validates inside an epoch: no callback is called, and the training's metrics go on."""
        metrics = self._state.read_metrics()
        result: ValidationResult = self.run(keras.callbacks.CallbackList([]), None).result
        self._state.set_metrics(metrics)
        return replace(result, metrics=keras_metrics.python_logs(result.metrics))

    def close(self) -> None:
        self.end()


@dataclass
class KerasEvaluation:
    """Validates by the model's `evaluate`, called as `keras.Model.fit` calls it."""

    model: keras.Model
    evaluate: FitEvaluation
    # takes the place of the model's; None leaves that
    test_step: Callable[[Any], Mapping[str, Any]] | None = None
    on_pass: Callable[[Pass], None] = lambda data_pass: None
    _test_function: Any = None

    def __call__(self, callbacks: keras.callbacks.CallbackList) -> Mapping[str, Any]:
        """Validates, and returns the logs. Dicts inside the logs stay, to be flattened with the epoch's."""
        if self.test_step is None:
            return self._evaluate(callbacks)
        model = self.model
        before, model.test_function = model.test_function, self._test_function
        model_step, is_on_instance = model.test_step, "test_step" in vars(model)
        model.test_step = self._step_around(self.test_step, model_step)
        try:
            return self._evaluate(callbacks)
        finally:
            del model.test_step
            if is_on_instance:
                model.test_step = model_step
            self._test_function, model.test_function = model.test_function, before

    def _step_around(self, step: Callable[[Any], Any], model_step: Callable[[Any], Any]) -> Any:
        """Returns `step`, within which `model.test_step` is the model's; replicas take turns in it."""
        local = threading.local()

        def test_step(batch: Any) -> Any:
            if getattr(local, "within", False):
                return model_step(batch)
            local.within = True
            try:
                logs = step(batch)
            finally:
                local.within = False
            require_logs("validation_step", logs)
            return logs

        return test_step

    def _evaluate(self, callbacks: keras.callbacks.CallbackList) -> Mapping[str, Any]:
        variables = self.model.metrics_variables  # to which all replicas write here
        with callers.entered(self.model, "evaluate"), counted(variables, by_first=False):
            logs, data_pass = self.evaluate(callbacks)
        self.on_pass(data_pass)
        return {str(name): value for name, value in logs.items()}


class WaitingRunner(Runner):
    """Stands in for the runner of a set before its first validation, for which the suite is built anew."""

    draws_anew = runs_python = False

    def __init__(self, *, rewindable: bool) -> None:
        self.rewindable = rewindable
