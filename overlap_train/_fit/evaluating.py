"""One `evaluate` of the model as it is. On the thread that called it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import keras

from overlap_train._callbacks.grounds import require_stock_list
from overlap_train._callbacks.hooks import runs_own_code
from overlap_train._callbacks.replay import begin_test, evaluate_now
from overlap_train._checkpoint.fingerprints import describe_sets
from overlap_train._fit.request import make_callback_list, require_data, require_heeded
from overlap_train._fit.validation_building import build_validation, make_sources
from overlap_train._inspection.traces import Traces
from overlap_train._keras import forks
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._support import arguments, fit_arguments
from overlap_train._training.settings import TrainerSettings
from overlap_train.options.validation import ValidationSet


def check_evaluate(*, batch_size: Any, steps: Any, verbose: Any) -> dict[str, Any]:
    """Return arguments of `keras.Model.evaluate`; raise TypeError or ValueError for bad ones."""
    return {
        "steps": arguments.optional(arguments.require_count, "steps", steps, minimum=1),
        "batch_size": arguments.optional(arguments.require_count, "batch_size", batch_size, minimum=1),
        "verbose": fit_arguments.require_verbosity(verbose),
    }


def make_evaluation_set(
    settings: TrainerSettings, data: Any, *, batch_size: Any, steps: Any, verbose: Any, callbacks: Any
) -> ValidationSet:
    """Checks the arguments of a call of `Trainer.evaluate` and returns its data."""
    counts = check_evaluate(batch_size=batch_size, steps=steps, verbose=verbose)
    keras_models.require_compiled(settings.model)
    require_heeded(settings, within_evaluate=True)
    require_stock_list(callbacks)
    validation_set = ValidationSet(data=data, steps=counts["steps"], batch_size=counts["batch_size"])
    require_data(settings.model, [validation_set])
    return validation_set


def run_evaluate(
    settings: TrainerSettings, data: ValidationSet, callbacks: Any, verbose: int | str = 0
) -> dict[str, Any]:
    """Evaluates the model as it is; returns its metrics by name. On the thread that called `evaluate`."""
    forks.require_runtime()
    model, sets = settings.model, {"": data}
    sources = make_sources(settings, sets)
    by_keras = keras_training.has_own_test_function(model)  # batch by batch, its bar included
    line = _ResultLine(callbacks, 0 if by_keras else verbose)
    steps = data.steps if by_keras else sources.asked("")
    callback_list = make_callback_list(
        callbacks,
        add_history=False,
        add_progbar=by_keras and verbose != 0,
        model=model,
        verbose=verbose,
        epochs=1,
        steps=steps,
    )
    if settings.hosts.count > 1:
        settings.hosts.check_same(describe_sets(sets))
    with contextlib.ExitStack() as resources:
        resources.callback(sources.close)
        is_traced = bool(Traces.of(model, "test"))
        arguments = settings, sets, callback_list, sources, resources
        state, suite, _ = build_validation(*arguments, within_evaluate=True)
        if not suite.live_sets(0):
            begin_test(callback_list, model)
            if not is_traced and any(runs_own_code(c, ["on_test_begin"]) for c in callback_list.callbacks):
                Traces.forget(model, "test")  # Keras traces behind that hook, which may set what is read
                state, suite, _ = build_validation(*arguments, within_evaluate=True)
        logs = evaluate_now(model, state, suite, callback_list)
        if not model.stop_evaluating:  # or batches were left out on purpose
            suite.warn()
    if not by_keras:
        group = keras_training.steps_per_execution(model)
        line.show(logs, steps, -(-sources.last_count("") // group) * group)
    return logs


class _ResultLine:
    """What `keras.Model.evaluate` has printed when it ends, unless a callback shows a bar itself."""

    def __init__(self, callbacks: Any, verbose: int | str) -> None:
        is_list = isinstance(callbacks, keras.callbacks.CallbackList)
        has_bar = is_list or any(
            isinstance(callback, keras.callbacks.ProgbarLogger) for callback in keras.tree.flatten(callbacks)
        )
        self._bar = None if has_bar or verbose == 0 else keras.callbacks.ProgbarLogger()
        if self._bar is not None:
            self._bar.set_params({"verbose": verbose, "epochs": 1, "steps": None})
            self._bar.on_test_begin()  # which starts its clock

    def show(self, logs: Mapping[str, Any], steps: int | None, seen: int) -> None:
        """Prints the result."""
        if self._bar is None:
            return
        self._bar.target, self._bar.seen = steps, seen
        self._bar.progbar.target = steps
        self._bar.on_test_end(logs)
