"""The evaluator of a training elsewhere: follows the directory into which that writes its weights.

The calling thread reads weights, evaluates them and writes the results. It keeps nothing that the next
evaluator would need: what has no result in the directory is still to be evaluated.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._callbacks.replay import read_by_python
from overlap_train._checkpoint.run_directory import (
    Entry,
    Run,
    RunDirectory,
    Sign,
    described,
    named_weights,
    until_next_look,
)
from overlap_train._fit.elsewhere import packed
from overlap_train._fit.interrupts import Interrupts
from overlap_train._fit.request import (
    FitRequest,
    make_callback_list,
    require_data,
    require_heeded,
)
from overlap_train._fit.validation_building import build_validation, make_sources
from overlap_train._keras import forks
from overlap_train._keras import models as keras_models
from overlap_train._snapshot import ModelState, Snapshot, Values
from overlap_train._support.arguments import (
    require_callable,
    require_instance,
    require_seconds,
)
from overlap_train._support.files import require_path
from overlap_train._support.fit_arguments import FitNumbers, check_frequency
from overlap_train._support.printing import error_text
from overlap_train._support.results import flat, prefixed
from overlap_train._training.settings import TrainerSettings
from overlap_train._training.strategy import find_strategy
from overlap_train._validation.functions import FunctionRequest, add_functions
from overlap_train._validation.pending import PendingEpoch
from overlap_train._validation.suite import ValidationSuite
from overlap_train._validation.validation_sources import is_set, named_sets
from overlap_train.errors import CheckpointError, HostLostError, HostMismatchError
from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.functions import EvaluationFunction, split_functions
from overlap_train.options.validation import ValidationPolicy, ValidationSet
from overlap_train.records import ValidationResult


def evaluate_run(
    directory: str | os.PathLike[str],
    model: keras.Model,
    validation_data: Any = None,
    *,
    functions: Mapping[str, Any] | None = None,
    validation: ValidationPolicy | None = None,
    preprocess: Callable[..., Any] | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | list[int] = 1,
    timeout_s: float = 600.0,
) -> dict[int, dict[str, Any]]:
    """Evaluate each epoch of a training in another process, while it trains or afterwards.

    The training has `ValidationPolicy(evaluator=directory)` and gets the results as if it had validated
    itself. The call returns when the training has ended. Start it before or after the training, and again at
    any time. If an ended training has kept its weights in the directory, start it after the next training, or
    it would evaluate the old one. After a training with `CheckpointPolicy(keep_weights="all")` or
    `EvaluatorPolicy(keep_weights=True)`, or one that was killed, it evaluates all weights that the directory
    still holds.

    Args:
        directory: that of the training's `ValidationPolicy(evaluator=...)`, or of its `CheckpointPolicy`.
        model: compiled, with the structure of the model that is trained, and perhaps with other metrics. At
            the end it has the last weights of a training that has ended.
        validation_data: as for `Trainer.fit`: one set, or several by name. None if there are functions only.
        functions: evaluation functions by name, as in `ValidationPolicy(functions=...)`.
        validation: how to validate: `workers`, `devices`, `keep_bytes`, `functions`.
        preprocess: as for `Trainer`.
        validation_steps: as for `fit`.
        validation_batch_size: as for `fit`.
        validation_freq: as for `fit`.
        timeout_s: seconds after which to return if no training gives a sign of life, such as one that was
            killed and may be started again; 0 evaluates what is there and returns.

    Returns:
        What this call has evaluated: by epoch, counted from 0, the values by their names in the logs, such as
        `val_loss`. Epochs that were rolled back at the end are left out.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or the validation would change the training.
        HostMismatchError: the model differs from that of the training.
        CheckpointError: the directory cannot be used.
    """
    forks.require_runtime()
    require_path("directory", directory)
    keras_models.require_model(model)
    keras_models.require_compiled(model)
    require_instance("validation", validation, ValidationPolicy)
    require_callable("preprocess", preprocess, optional=True)
    check_frequency(validation_freq)
    numbers = FitNumbers(validation_steps=validation_steps, validation_batch_size=validation_batch_size)
    timeout_s = require_seconds("timeout_s", timeout_s, zero=True)
    policy = validation if validation is not None else ValidationPolicy()
    data, named = split_functions(
        validation_data, functions if functions is not None else policy.functions, is_set
    )
    steps, batch_size = numbers.validation_steps, numbers.validation_batch_size
    default = ValidationSet(None, freq=validation_freq, steps=steps, batch_size=batch_size)
    sets = named_sets(data, default)
    if not (sets or (named and model.built)):
        raise ValueError("evaluate_run needs validation_data, or functions and a model that is built")
    settings = TrainerSettings(
        model,
        model.train_step,
        model.test_step,
        policy,
        ExecutionPlan(),
        SpanRecorder(),
        replicas=find_strategy(model, None),
        preprocess=preprocess,
        in_memory_bytes=0,
        stock=True,
        stock_validation=True,
    )
    require_heeded(settings)
    try:
        require_data(model, sets.values())
    except ValueError as error:
        raise ValueError(f"validation_data cannot be used: {error}") from error
    with Follower(directory, settings, sets, named, validation_freq) as follower:
        return follower.results(follower.follow(timeout_s, takes_old=True))


def serve(request: FitRequest) -> str:
    """Is the evaluator of the hosts that train, until they end; returns how they did."""
    settings, model, replicas = request.settings, request.model, request.settings.replicas
    policy = settings.evaluator
    assert replicas is not None
    assert policy is not None
    replicas.build(model, request.feed.element_spec)
    epochs = request.epochs
    make_callback_list(request.callbacks, model=model, verbose=0, epochs=epochs, steps=None)  # a History
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


class Follower(contextlib.ExitStack):
    """Evaluates what a training writes into a directory. On the calling thread."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        settings: TrainerSettings,
        sets: Mapping[str, ValidationSet],
        functions: Mapping[str, EvaluationFunction],
        validation_freq: int | Sequence[int],
    ) -> None:
        """Makes the directory, and gives signs of life there until it is closed."""
        super().__init__()
        self._files = RunDirectory(directory)
        self._files.make()
        self._sign = self.enter_context(Sign(self._files, "evaluator", "training"))
        self._settings = settings
        self._sets = sets
        self._functions = functions
        self._freq = validation_freq
        self._described = {**described(settings.model), **settings.described_validation}
        self._names: list[str] = []  # of the weights
        self._built: tuple[ModelState, ValidationSuite] | None = None
        # Epoch and values by the weights' run and number, which begins anew where no files are left.
        self._done: dict[tuple[str, int], tuple[int, dict[str, Any]]] = {}

    def follow(self, timeout_s: float, *, takes_old: bool) -> Run | None:
        """Answers a training until it has ended or gives no sign for so long; returns what it said last.

        `takes_old` says whether one that had ended before is enough, if it has kept weights.
        """
        old, begun_s = self._files.read_run(), time.monotonic()
        answered_s = begun_s
        while True:
            run = self._files.read_run()
            if run is not None:
                self._build()
                new_run = run.id != old.id if old is not None and old.ended else True
                answered = {entry[1:] for entry in self._files.entries("result")}
                entries = self._files.entries("weights", "inside")
                new = [e for e in entries if e.run == run.id and e[1:] not in answered]
                if new and self._answer(new[0]):
                    answered_s = time.monotonic()
                    continue
                if run.ended and (new_run or (takes_old and self._files.entries("weights"))):
                    return run
            if time.monotonic() - max(begun_s, self._sign.seen_s()) >= timeout_s:
                return run if takes_old else None
            time.sleep(until_next_look(time.monotonic() - answered_s))

    def results(self, run: Run | None) -> dict[int, dict[str, Any]]:
        """Returns what has been evaluated, and evaluates what else the directory holds."""
        for entry in self._files.entries("weights") if run is not None else ():
            if (entry.run, entry.number) not in self._done:
                try:
                    self._evaluate(entry)
                except CheckpointError as error:
                    warnings.warn(f"left out: {error}", RuntimeWarning, stacklevel=3)
        values = dict(self._done.values())  # of an epoch that was trained again, the last ones
        if run is not None and run.ended and self._built is not None:
            state, last = self._built[0], max(run.epochs, default=-1)
            state.restore(self._values(state, run.weights))
            values = {epoch: values[epoch] for epoch in values if epoch <= last}
        return dict(sorted(values.items()))

    def _answer(self, entry: Entry) -> bool:
        """Evaluates weights and writes what came of it, also what went wrong; returns whether it is done."""
        results: dict[str, Any] = {}
        failure: Exception | None = None
        try:
            results = packed(self._evaluate(entry))
        except Exception as error:
            failure = error
        try:
            if entry in self._files.entries(entry.kind):  # or else the training has given it up
                self._files.answer(entry, results, None if failure is None else error_text(failure))
        except OSError as error:
            warnings.warn(f"evaluated again, because {error}", RuntimeWarning, stacklevel=3)
            return False
        if isinstance(failure, (HostMismatchError, _RefusedError)):
            raise failure
        return True

    def _evaluate(self, entry: Entry) -> dict[str, ValidationResult]:
        """Returns the results of weights, and notes those of an epoch's end."""
        assert self._built is not None
        state, suite = self._built
        _require_possible(state, suite)
        stored = self._files.read(entry)
        for part, own in self._described.items():
            if (other := stored.fingerprint.get(part, own if "." in part else None)) != own:
                raise HostMismatchError(
                    f"the evaluator has another {part} than the training: {own[:300]} instead of "
                    f"{str(other)[:300]}; give both the same model and arguments"
                )
        by_python = suite.reads_by_python()
        if by_python:
            self._settings.model.reset_metrics()
        values = self._values(state, stored.arrays)
        snapshot = Snapshot(stored.epoch, stored.step, values)
        validations = suite.start(snapshot, on_all=entry.kind != "weights")
        pending = PendingEpoch(snapshot, {}, validations)
        pending.wait(None, lambda: None)
        collected, _ = suite.collect(pending)
        if by_python:  # which may look at the weights
            state.restore(values)
        results = {
            name: read_by_python(self._settings.model, state, result) for name, result in collected.items()
        }
        if entry.kind == "weights":
            self._done[entry.run, entry.number] = entry.epoch, flat(prefixed(results))
        return results

    def _build(self) -> None:
        """Traces the validation, once there is a training."""
        if self._built is not None:
            return
        settings, model = self._settings, self._settings.model
        callbacks = make_callback_list([], add_history=False, model=model, verbose=0, epochs=1, steps=None)
        sources = make_sources(settings, self._sets)
        self.callback(sources.close)
        state, suite, batch_spec = build_validation(
            settings, self._sets, callbacks, sources, self, apart=True
        )
        if self._functions:
            spec = batch_spec or [[tf.TensorSpec(x.shape, x.dtype) for x in model.inputs]]
            request = FunctionRequest(model, state, spec, self._freq, settings.recorder.add)
            add_functions(suite, self._functions, request, self)
        self._built = state, suite
        self._names, self._described["weights"] = named_weights(model, state)

    def _values(self, state: ModelState, weights: Mapping[str, Any]) -> Values:
        """Returns the values of the model's variables, of which the weights are those that came."""
        present = state.read().flat()
        names = [name for name in self._names if name not in weights]
        if names:
            raise HostMismatchError(f"the training has no weight {names[0]}; give both the same model")
        pairs = zip(self._names, present, strict=False)  # the weights may have been kept in float16
        return state.pack([*(tf.cast(weights[n], p.dtype) for n, p in pairs), *present[len(self._names) :]])


class _RefusedError(ValueError):
    """A validation cannot be made elsewhere."""


def _require_possible(state: ModelState, suite: ValidationSuite) -> None:
    if suite.reasons:
        first = suite.reasons[0]
        raise _RefusedError(f"{first.sentence}; {first.remedy}; that is for validation without an evaluator")
    if state.outside:
        names = ", ".join(variable.name for variable in state.outside[:3])
        raise _RefusedError(
            f"the validation reads variables outside the model ({names}), which an evaluator does not get"
        )
