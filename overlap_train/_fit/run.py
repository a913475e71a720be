"""Runs one `fit`, one `evaluate`, or the evaluator of a `fit` elsewhere; explains what a `fit` would do."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from typing import Any

import keras
import tensorflow as tf

from overlap_train._callbacks.hooks import runs_own_code
from overlap_train._callbacks.replay import begin_test, evaluate_now
from overlap_train._checkpoint.attributes import beside
from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.batches import size_bytes
from overlap_train._data.cursor import Cursor
from overlap_train._fit.build import FitBuilder, FitParts
from overlap_train._fit.callback_list import ResultLine, make_callback_list
from overlap_train._fit.course import FitOutcome
from overlap_train._fit.evaluator import Follower
from overlap_train._fit.interrupts import Interrupts
from overlap_train._fit.request import FitRequest
from overlap_train._fit.session import FitSession, open_fit
from overlap_train._fit.step_building import look_only
from overlap_train._fit.validation_building import build_validation, make_sources
from overlap_train._inspection.traces import Traces
from overlap_train._keras import forks
from overlap_train._keras import training as keras_training
from overlap_train._support.reasons import Reason
from overlap_train._training.settings import TrainerSettings
from overlap_train.errors import HostLostError, ValidationWorkerError
from overlap_train.monitoring.progress import ProgressReporter, TolerantStream
from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.options.validation import ValidationSet
from overlap_train.parallel.hosts import Hosts
from overlap_train.records import Explanation


def run_fit(request: FitRequest, outcome: FitOutcome) -> None:
    """Trains a model, or is the evaluator of those that do; fills the outcome, however it ends."""
    if request.settings.serves:
        outcome.ended = _serve(request)
        return
    model, group = request.model, keras_training.steps_per_execution(request.model)
    with contextlib.ExitStack() as resources:
        resources.callback(request.feed.close)
        if request.checkpoints is not None and request.feed.runs_python:
            request.feed.remember(beside(model))  # as it stands before its first epoch begins
        cursor = Cursor(request.feed, request.steps_per_epoch, group)
        resources.callback(cursor.close)
        steps = cursor.steps_per_epoch
        callbacks = make_callback_list(
            model, request.callbacks, verbose=request.verbose, epochs=request.epochs, steps=steps
        )
        progress = ProgressReporter(request.epochs, steps, verbose=request.verbose)
        resources.enter_context(progress)
        outcome.messages = progress.messages
        inside, start_s = outcome.step_validations, outcome.start_s
        builder = FitBuilder(request, cursor, callbacks, progress, resources, inside, start_s=start_s)
        with _NamingLostHosts(request.settings.hosts):
            session = _open(request, builder, callbacks)
        if session is not None:
            _run(session, request, builder, outcome)
        else:
            outcome.ended = "completed"
    outcome.take(builder.ledger, model.history)  # again: it takes time to close what was opened
    if request.verbose != 0 and outcome.accounts:
        TolerantStream(sys.stdout).write(f"{outcome.accounts}\n")


def run_evaluate(
    settings: TrainerSettings, data: ValidationSet, callbacks: Any, verbose: int | str = 0
) -> dict[str, Any]:
    """Evaluates the model as it is; returns its metrics by name. On the thread that called `evaluate`."""
    forks.require_runtime()
    model, sets = settings.model, {"": data}
    sources = make_sources(settings, sets)
    by_keras = keras_training.has_own_test_function(model)  # batch by batch, its bar included
    line = ResultLine(callbacks, 0 if by_keras else verbose)
    steps = data.steps if by_keras else sources.asked("")
    callback_list = make_callback_list(
        model,
        callbacks,
        verbose=verbose,
        epochs=1,
        steps=steps,
        history=False,
        bar=by_keras and verbose != 0,
    )
    with contextlib.ExitStack() as resources:
        resources.callback(sources.close)
        is_traced = Traces.of(model).holds("test", keras_training.test_function(model))
        arguments = settings, sets, callback_list, sources, resources
        state, suite, _ = build_validation(*arguments, within_evaluate=True)
        if not suite.live_sets(0):
            begin_test(callback_list, model)
            if not is_traced and any(runs_own_code(c, ["on_test_begin"]) for c in callback_list.callbacks):
                Traces.of(model).forget("test")  # Keras traces behind that hook, which may set what is read
                state, suite, _ = build_validation(*arguments, within_evaluate=True)
        logs = evaluate_now(model, state, suite, callback_list)
        if not model.stop_evaluating:  # or batches were left out on purpose
            suite.warn()
    if not by_keras:
        group = keras_training.steps_per_execution(model)
        line.show(logs, steps, -(-sources.last_count("") // group) * group)
    return logs


# What TensorFlow raises where another host does not answer.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.InternalError,
    tf.errors.DeadlineExceededError,
)
_ABORTED = (
    "TensorFlow ends the collective operations of a process with the first one that fails: nothing can be "
    "trained on replicas here any more. Start the program anew"
)


def _open(
    request: FitRequest, builder: FitBuilder, callbacks: keras.callbacks.CallbackList
) -> FitSession | None:
    """Builds a fit and calls its first hooks; returns None where there is no epoch to be trained."""
    model = request.model
    # Otherwise the steps are traced when Keras traces them: after the first hooks.
    traces_first = request.checkpoints is not None or request.settings.hosts.count > 1
    parts = builder.build() if traces_first else None
    if parts is None and request.settings.validation.overlap == "require":
        builder.require_overlap()
    listed = callbacks if parts is None else parts.deliveries.callbacks
    opening = open_fit(request, listed, traced=parts is not None)
    if parts is None and opening.epoch >= request.epochs:
        if request.epochs > 0 and isinstance(model.optimizer, keras.optimizers.Optimizer):
            model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs=None)
        return None
    return FitSession(request.settings, parts or builder.build(), opening, builder.build)


class _NamingLostHosts:
    """Raises HostLostError in the place of what TensorFlow raises where another host does not answer."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, tf.errors.OpError):
            return
        if isinstance(error, ValidationWorkerError) or self._hosts.count == 1 or not isinstance(error, _LOST):
            if "Collective ops is aborted" in error.message:
                error.add_note(_ABORTED)
            return
        raise HostLostError(
            f"host {self._hosts.index} cannot go on, because another host has gone or does not answer; "
            "start all of them again, with fit(resume=...) from the last checkpoint"
        ) from error


def _run(session: FitSession, request: FitRequest, builder: FitBuilder, outcome: FitOutcome) -> None:
    """Runs a session and keeps its accounts, however it ends."""
    try:
        with _NamingLostHosts(request.settings.hosts):
            session.run()
        outcome.ended = session.ended
    finally:
        if session.ended.startswith("interrupted"):  # also where the signal raises, as in a routed fit
            outcome.ended = session.ended
        outcome.take(builder.ledger, request.model.history)


def _serve(request: FitRequest) -> str:
    """Is the evaluator of the hosts that train, until they end; returns how they did."""
    settings, model, replicas = request.settings, request.model, request.settings.replicas
    policy = settings.evaluator
    assert replicas is not None
    assert policy is not None
    replicas.build(model, request.feed.element_spec)
    make_callback_list(model, request.callbacks, verbose=0, epochs=request.epochs, steps=None)  # a History
    # A first signal is for the training hosts, whose end ends this one.
    followed = (policy.directory, settings, request.sets, request.functions, request.validation_freq)
    with Interrupts(insists=False), Follower(*followed) as follower:
        run = follower.follow(policy.wait_s, takes_old=False)
        follower.results(run)
    if run is None or run.ended is None:  # killed, and not come back
        raise HostLostError(
            f"no training gives a sign of life in {policy.directory} for {policy.wait_s:g} s; start all "
            "hosts again, with fit(resume=...) from the last checkpoint"
        )
    model.history.epoch, model.history.history = list(run.epochs), dict(run.history)
    model.history.ended = run.ended
    return run.ended


def explain_fit(request: FitRequest) -> Explanation:
    """Builds a fit as it would be run, traces it, and takes it apart again. On the calling thread."""
    settings = dataclasses.replace(request.settings, recorder=SpanRecorder(0))  # the timeline is of fits
    request = dataclasses.replace(request, settings=settings, checkpoints=None, verbose=0)
    start_s = time.monotonic()
    with contextlib.ExitStack() as resources:
        group = keras_training.steps_per_execution(request.model)
        resources.callback(request.feed.close)
        look_only(request, resources)
        cursor = Cursor(request.feed, request.steps_per_epoch, group, tells=False)
        steps = cursor.steps_per_epoch
        progress = resources.enter_context(ProgressReporter(request.epochs, steps, verbose=0))
        callbacks = _unheard(request.callbacks)
        builder = FitBuilder(request, cursor, callbacks, progress, resources, [], looks_only=True)
        parts = builder.build()
        return _explanation(request, parts, steps, time.monotonic() - start_s)


def _unheard(callbacks: Any) -> keras.callbacks.CallbackList:
    """Returns callbacks for a look at what they listen to, without setting their model."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(callbacks, add_history=True, add_progbar=False)


def _explanation(request: FitRequest, parts: FitParts, steps: int | None, seconds: float) -> Explanation:
    messages, lag = parts.training.progress.messages, parts.deliveries.backlog.max_lag
    validates = bool(parts.deliveries.suite)
    arrays = keras.tree.flatten(request.feed.tensors) if isinstance(request.feed, ArrayFeed) else []
    plan = next((text.removeprefix("plan: ") for text in messages if text.startswith("plan: ")), "")
    return Explanation(
        validates=validates,
        max_lag=lag,
        reasons=parts.reasons or (Reason.of("lag-zero"),) if validates and not lag else (),
        plan=plan,
        steps_per_epoch=steps,
        workers=request.settings.validation.resolved_workers,
        snapshot_bytes=sum(map(size_bytes, parts.state.read().flat())),
        data_bytes=sum(map(size_bytes, arrays)),
        tracing_s=seconds,
        messages=tuple(messages),
    )
