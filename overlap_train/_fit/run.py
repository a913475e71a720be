"""Runs one `fit`, or the evaluator of a `fit` elsewhere."""

from __future__ import annotations

import contextlib
import sys

import keras
import tensorflow as tf

from overlap_train._checkpoint.attributes import beside
from overlap_train._data.cursor import Cursor
from overlap_train._fit.build import FitBuilder
from overlap_train._fit.course import FitOutcome
from overlap_train._fit.evaluator import serve
from overlap_train._fit.request import FitRequest, make_callback_list
from overlap_train._fit.session import FitSession, open_fit
from overlap_train._keras import training as keras_training
from overlap_train._validation.replica_metrics import counted
from overlap_train.errors import HostLostError, HostMismatchError, ValidationWorkerError
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.quiet import QuietProgress
from overlap_train.monitoring.terminal import TolerantStream
from overlap_train.parallel.hosts import Hosts


def run_fit(request: FitRequest, outcome: FitOutcome) -> None:
    """Trains a model, or is the evaluator of those that do; fills the outcome, however it ends."""
    if request.settings.serves:
        outcome.ended = serve(request)
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
            request.callbacks, model=model, verbose=request.verbose, epochs=request.epochs, steps=steps
        )
        progress = QuietProgress()
        if request.verbose != 0:
            progress = ProgressReporter(request.epochs, steps, verbose=request.verbose)
        resources.enter_context(progress)
        if request.counts_on_first:
            resources.enter_context(counted(model.metrics_variables, by_first=True))
        outcome.messages = progress.messages
        builder = FitBuilder(request, cursor, callbacks, progress, resources, outcome)
        try:
            session = _open(request, builder, callbacks)
            if session is not None:
                _run(session, request, builder, outcome)
            else:
                outcome.ended = "completed"
        except tf.errors.OpError as error:
            name_lost_host(error, request.settings.hosts)
            raise
    outcome.take(builder.ledger, model.history)  # again: it takes time to close what was opened
    if request.verbose != 0 and outcome.accounts:
        TolerantStream(sys.stdout).write(f"{outcome.accounts}\n")


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


def name_lost_host(error: tf.errors.OpError, hosts: Hosts) -> None:
    """Raises HostLostError for what TensorFlow raises where another host does not answer.

    Where it answers with something else, that is a HostMismatchError. What an aborted collective breaks on
    one host gets a note.
    """
    if isinstance(error, ValidationWorkerError) or hosts.count == 1 or not isinstance(error, _LOST):
        if "Collective ops is aborted" in error.message:
            error.add_note(_ABORTED)
        return
    if "ollective instance" in error.message:  # as TensorFlow names one to which others bring other types
        raise HostMismatchError(
            f"host {hosts.index} cannot go on, because code that one host alone runs, such as a callback, "
            "has called model.predict, model.evaluate, metric.result() or something else that asks all "
            "hosts; leave that out"
        ) from error
    raise HostLostError(
        f"host {hosts.index} cannot go on, because another host has gone or does not answer; start all of "
        "them again, with fit(resume=...) from the last checkpoint"
    ) from error


def _run(session: FitSession, request: FitRequest, builder: FitBuilder, outcome: FitOutcome) -> None:
    """Runs a session and keeps its accounts, however it ends."""
    try:
        session.run()
        outcome.ended = session.ended
    finally:
        if session.ended.startswith("interrupted"):  # also where the signal raises, as in a routed fit
            outcome.ended = session.ended
        outcome.take(builder.ledger, request.model.history)
