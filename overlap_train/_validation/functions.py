"""Evaluation functions during the training: called for each snapshot, collected like any validation.

Each function has a thread of its own, so that it is never called twice at a time and always from the same
thread, and two that wait do so together. A function whose model has no private copy is called on the training
thread when its epoch is delivered, with the model itself, as a callback would call it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import keras

from overlap_train._keras import data as keras_data
from overlap_train._keras import models as keras_models
from overlap_train._keras import routes
from overlap_train._keras.copies import set_thread_settings, thread_settings
from overlap_train._snapshot import ModelState, Snapshot, Values
from overlap_train._support import fit_arguments
from overlap_train._support.reasons import Reason
from overlap_train._validation.live import LiveRunner
from overlap_train._validation.pending import NamedRunner, Runner, span_since
from overlap_train._validation.pool import WorkerPool
from overlap_train._validation.private_model import (
    Attributes,
    CopyRefusedError,
    PrivateModel,
    make_private_model,
    require_no_outside,
)
from overlap_train._validation.suite import ValidationSuite
from overlap_train.options.functions import EvaluationFunction, metric_values
from overlap_train.parallel.hosts import Hosts
from overlap_train.records import ShardOutcome, Span, ValidationResult


@dataclass(frozen=True)
class FunctionRequest:
    """What the evaluation functions of a `fit` need."""

    model: keras.Model
    state: ModelState
    batch_spec: Any
    validation_freq: int | Sequence[int]
    on_span: Callable[[Span], None]
    hosts: Hosts = field(default_factory=Hosts)


def add_functions(
    suite: ValidationSuite,
    functions: Mapping[str, EvaluationFunction],
    request: FunctionRequest,
    resources: contextlib.ExitStack,
) -> None:
    """Adds evaluation functions to a suite; on the training thread."""
    for name, function in functions.items():
        freq = request.validation_freq if function.freq is None else function.freq
        validates = fit_arguments.epoch_selector(freq, name="freq")
        private = _private_model(name, function, request)
        if isinstance(private, Reason):
            values = functools.partial(_values, function.function, request.model)
            live = LiveRunner(values, request.state, request.on_span, private, function=name)
            suite.add_function(NamedRunner(name, live, validates), None)
            continue
        pool = resources.enter_context(WorkerPool(1, name=f"validation-{name}"))
        runner = FunctionRunner(name, function.function, private, pool, request)
        suite.add_function(NamedRunner(name, runner, validates), pool)


def _private_model(
    name: str, function: EvaluationFunction, request: FunctionRequest
) -> PrivateModel | Reason:
    """Returns the model with which a function is called during the training, or why there is none."""
    if keras_models.runs_eagerly(request.model):
        return Reason.of("model-eager")
    try:
        if function.clone is None:
            require_no_outside(request.state)
        x_spec, *_ = keras.utils.unpack_x_y_sample_weight(keras_data.without_optionals(request.batch_spec))
        return make_private_model(request.model, request.state, x_spec, function.clone)
    except CopyRefusedError as error:
        if function.clone is None:
            return Reason.of("function-model", f"{name!r}, as {error}")
        raise ValueError(
            f"the clone of evaluation function {name!r} is no copy of the model: {error}"
        ) from error


@dataclass(eq=False)
class FunctionRunner(Runner):
    """Has a function called for snapshots on a thread of its own. Belongs to the training thread.

    On several hosts the chief calls it, and the others get its values.
    """

    _name: str
    _function: Callable[[keras.Model], Any]
    _private: PrivateModel
    _pool: WorkerPool
    _request: FunctionRequest

    def start(self, snapshot: Snapshot) -> list[Future[ShardOutcome]]:
        """Begins to evaluate a snapshot."""
        if not self._request.hosts.is_chief:
            return []
        # All that precedes this epoch's end has been delivered, and no hook of a later one has been called.
        attributes, settings = Attributes.of(self._request.model), thread_settings()
        run = contextvars.copy_context().run
        return [self._pool.submit(run, self._work, snapshot, attributes, settings)]

    def evaluate(self, values: Values, *, alone: bool = False) -> ValidationResult:
        """Evaluates values now, and waits for the result."""
        futures = self.start(Snapshot(epoch=0, step=0, values=values))
        self._pool.admit(None)
        result: ValidationResult = futures[0].result().result
        return result

    def merge(self, outcomes: Sequence[ShardOutcome], values: Values) -> ValidationResult:
        """Returns the chief's result, on all hosts."""
        hosts = self._request.hosts
        own = super().merge(outcomes, values).metrics if hosts.is_chief else None
        return ValidationResult(hosts.from_chief(own), of_function=True)

    def _work(self, snapshot: Snapshot, attributes: Attributes, settings: Mapping[str, Any]) -> ShardOutcome:
        start_s = time.monotonic()
        set_thread_settings(settings)
        private = self._private
        private.adopt(snapshot.values, attributes)
        with routes.suspended():  # or `install` would evaluate its model by workers of its own
            result = ValidationResult(_values(self._function, private.model), of_function=True)
        span = span_since(start_s, snapshot, function=self._name)
        self._request.on_span(span)
        return ShardOutcome(result, span)


def _values(
    function: Callable[[keras.Model], Any], model: keras.Model, *_: keras.callbacks.CallbackList
) -> Mapping[str, float]:
    """Returns a function's values by name."""
    return metric_values(function(model))
