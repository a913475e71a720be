"""Validation on the model's own variables, in step with the training and in Keras's order of events.

For what cannot be evaluated on a snapshot's private copy: steps that draw random numbers outside a seed
generator, run Python or write summaries, metrics that compute with NumPy, and models with an `evaluate` of
their own. Keras's own `evaluate` runs when the epoch is delivered, on the training thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras

from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import routes
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._support.printing import error_text
from overlap_train._support.reasons import Reason
from overlap_train._training.step import require_logs
from overlap_train._validation.pending import Runner
from overlap_train.errors import ValidationWorkerError, worker_error
from overlap_train.records import ShardOutcome, Span, ValidationResult

__all__ = ["KerasEvaluation", "LiveRunner", "live_failure"]


_HOOKS = ("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end")


Validates = Callable[[keras.callbacks.CallbackList], Mapping[str, Any]]
"""Makes one validation of the model as it is, calling `on_test_*`, and returns the logs."""


class LiveRunner(Runner):
    """Validates the model as it is, by `run`, when its epoch is delivered. Belongs to the training thread."""

    in_step: Reason | None = None
    rewindable: bool = True

    def __init__(
        self,
        validate: Validates,
        reason: Reason | None,
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
        self.in_step = reason
        self.details: Mapping[str, Any] = {"shard": 0}
        self.rewindable = rewindable
        # What a callback has raised in the last validation: the caller may wait for it, as for a pruner's.
        self.raised_by_hook: Exception | None = None

    def run(self, callbacks: keras.callbacks.CallbackList, snapshot: Snapshot | None) -> ShardOutcome:
        """Validates the model as it is."""
        start_s = time.monotonic()
        self.raised_by_hook = None
        with _HookErrors(callbacks, self._note):
            logs = self._validate(callbacks)
        thread = threading.current_thread().name
        epoch, step = (snapshot.epoch, snapshot.step) if snapshot is not None else (None, None)
        span = Span("validate", thread, start_s, time.monotonic(), epoch, step, self.details)
        self._on_span(span)
        result = self._result(logs)
        return ShardOutcome(result, span, result)

    def _note(self, error: Exception) -> None:
        self.raised_by_hook = error

    def run_alone(self) -> ValidationResult:
        """Validates inside an epoch, where no callback is told and the training's metrics go on."""
        state = self._state
        before = state.read_metrics()
        outcome = self.run(keras.callbacks.CallbackList([]), None)
        state.set_metrics(before)
        result: ValidationResult = outcome.result
        return replace(result, metrics=keras_metrics.python_logs(result.metrics))

    def close(self) -> None:
        """Ends what the data began."""
        self._close()

    def _result(self, logs: Mapping[str, Any]) -> ValidationResult:
        return ValidationResult(dict(logs), (), self._state.read_metrics())


class _HookErrors:
    """Notes what the test hooks of a list raise: Keras takes its own frames out of the traceback."""

    def __init__(self, callbacks: keras.callbacks.CallbackList, note: Callable[[Exception], None]) -> None:
        self._callbacks = callbacks
        self._note = note
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        attributes = vars(self._callbacks)
        self._before = {name: attributes[name] for name in _HOOKS if name in attributes}
        for name in _HOOKS:
            # Not `getattr`: a list of the user's may hear that.
            attributes[name] = self._noted(object.__getattribute__(self._callbacks, name))

    def __exit__(self, *_: object) -> None:
        for name in _HOOKS:
            del vars(self._callbacks)[name]
        vars(self._callbacks).update(self._before)

    def _noted(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return hook(*args, **kwargs)
            except Exception as error:
                self._note(error)
                raise

        return called


def live_failure(name: str, epoch: int, error: BaseException) -> ValidationWorkerError:
    """Returns what is raised for a live validation that failed."""
    where = f"on set {name!r} " if name else ""
    return worker_error(
        f"validating epoch {epoch + 1} {where}failed: {error_text(error)}",
        epoch=epoch,
        shard=0,
        cause=error,
    )


@dataclass
class KerasEvaluation:
    """Validates by the model's `evaluate`, called as `keras.Model.fit` calls it."""

    model: keras.Model
    evaluate: keras_training.FitEvaluation
    # takes the place of the model's; None leaves that
    test_step: Callable[[Any], Mapping[str, Any]] | None = None
    passed: Callable[[keras_training.Pass], None] = lambda made: None
    _test_function: Any = None

    def __call__(self, callbacks: keras.callbacks.CallbackList) -> Mapping[str, Any]:
        """Validates, and returns the logs. Dicts inside the logs stay, to be flattened with the epoch's."""
        if self.test_step is None:
            return self._evaluate(callbacks)
        model = self.model
        before, model.test_function = model.test_function, self._test_function
        own, set_on_it = model.test_step, "test_step" in vars(model)
        model.test_step = self._step_around(own)
        try:
            return self._evaluate(callbacks)
        finally:
            del model.test_step
            if set_on_it:
                model.test_step = own
            self._test_function, model.test_function = model.test_function, before

    def _step_around(self, own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the step, in which `model.test_step` is the model's own; replicas take turns in it."""
        assert self.test_step is not None
        step, local = self.test_step, threading.local()

        def test_step(batch: Any) -> Any:
            if getattr(local, "within", False):
                return own(batch)
            local.within = True
            try:
                logs = step(batch)
            finally:
                local.within = False
            require_logs("validation_step", logs)
            return logs

        return test_step

    def _evaluate(self, callbacks: keras.callbacks.CallbackList) -> Mapping[str, Any]:
        with routes.entered(self.model, "evaluate"):
            logs, made = self.evaluate(callbacks)
        self.passed(made)
        return {str(name): value for name, value in logs.items()}
