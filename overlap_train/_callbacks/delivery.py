"""G: calling the callbacks at an epoch's end with the model as it was then.

While the callbacks of epoch e run, the model's variables hold snapshot e; what training has done since is put
aside. So a checkpoint saves the weights that gave the logged numbers, and whatever a callback changes is
changed on those weights: a rollback is then simply not to go back to what was put aside. Where no callback
looks at the model, all of that is left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import keras

from overlap_train._callbacks.hooks import TEST_HOOKS, listens, looks_at_model
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState, Snapshot, Values, same_bits
from overlap_train.records import ShardOutcome, Span, ValidationResult, prefixed


@dataclass(frozen=True)
class Outcome:
    """What the callbacks of an epoch's end did, and of the next one's beginning."""

    logs: Mapping[str, Any]  # as the callbacks got them
    stop: bool  # the training is to end with this epoch
    values: Values  # of the variables right behind `on_epoch_end`
    results: Mapping[str, ValidationResult] = field(default_factory=dict)  # by the set's name
    spans: tuple[Span, ...] = ()  # of validations that were made meanwhile
    rolled_back: bool = False  # the model stands at the snapshot, with what the callbacks changed
    reason: str | None = None  # why it would, in words


@dataclass(frozen=True)
class EpochBeginning:
    """What an `on_epoch_begin` that was called in a delivery has done."""

    rates: Mapping[int, Any]  # that schedules set and the epoch was trained with, by places in `Values.flat`
    reason: str | None = None  # what set a metric's variable, in words: the epoch has to go on from that


Ended = Callable[[Outcome], None]
BeginNext = Callable[[Values], EpochBeginning]


class _Validations(Protocol):
    """The methods of a suite that a delivery calls; see `ValidationSuite`."""

    def evaluate(self, name: str, values: Values, *, alone: bool = False) -> ValidationResult: ...
    def reads_by_python(self) -> bool: ...
    def evaluate_live(self, name: str, callbacks: keras.callbacks.CallbackList) -> ValidationResult: ...
    def live_sets(self, epoch: int) -> list[str]: ...
    def validate_live(
        self, name: str, snapshot: Snapshot, callbacks: keras.callbacks.CallbackList
    ) -> ShardOutcome | None: ...


class Delivery:
    """Delivers epochs to callbacks, on the training thread.

    `live_metrics` returns the names of metrics whose result is a variable itself, and `changed_decision` why
    callbacks have to be called otherwise than has been decided, or None.
    """

    def __init__(
        self,
        model: keras.Model,
        state: ModelState,
        callbacks: keras.callbacks.CallbackList,
        *,
        on_change: str,
        suite: _Validations,
        live_metrics: Callable[[], frozenset[str]] = frozenset,
        changed_decision: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._model = model
        self._state = state
        self._callbacks = callbacks
        self._on_change = on_change
        self._suite = suite
        self._live_metrics = live_metrics
        self._changed_decision = changed_decision
        self._wants_test = listens(callbacks.callbacks, *TEST_HOOKS)

    def deliver(
        self,
        snapshot: Snapshot,
        train_logs: Mapping[str, Any],
        results: Mapping[str, ValidationResult],
        *,
        stops: bool,
        trained_on: bool,
        ended: Ended = lambda outcome: None,
        begin_next: BeginNext | None = None,
    ) -> Outcome:
        """Call the hooks between an epoch's last batch and the next one's first, and validate live.

        `stops` says that the training was told to stop inside this epoch, `trained_on` that it has gone on
        since. `ended` is called behind `on_epoch_end`; `begin_next` calls the `on_epoch_begin` of an epoch
        that has begun.
        """
        live = self._suite.live_sets(snapshot.epoch)
        looked_at = any(map(looks_at_model, self._callbacks.callbacks))  # callbacks may have been added
        unread = any(result.unread for result in results.values())
        if not (stops or live or looked_at or unread or begin_next is not None):
            outcome = self._deliver_unseen(snapshot, train_logs, results, trained_on=trained_on)
            ended(outcome)
            return outcome
        aside = self._state.read() if trained_on else None
        stop_training, function = self._model.stop_training, keras_training.train_function(self._model)
        if aside is not None:
            self._state.restore(snapshot.values)
        self._model.stop_training = stops
        tested, spans = self._tested(snapshot, results, live)
        logs = self._logs(train_logs, tested)
        self._callbacks.on_epoch_end(snapshot.epoch, logs)

        stop, values = bool(self._model.stop_training), self._values(snapshot, aside)
        outcome = Outcome(keras_metrics.python_logs(logs), stop, values, tested, spans)
        ended(outcome)
        if aside is None:
            return outcome
        changed, values, reason = self._acted(snapshot, outcome, aside, None if stop else begin_next)
        stops_now = bool(self._model.stop_training)
        reason = reason or self._changed_decision()
        if reason is None and keras_training.train_function(self._model) is not function:
            reason = "a callback compiled the model anew"
        rolled_back = reason is not None and self._on_change == "rollback"
        if not rolled_back:
            flat = values.flat()
            self._state.restore(aside)
            self._state.set_values(changed, [flat[index] for index in changed])
            self._model.stop_training = stop_training or stops_now
        return replace(outcome, rolled_back=rolled_back, reason=reason)

    def _acted(
        self, snapshot: Snapshot, outcome: Outcome, aside: Values, begin_next: BeginNext | None
    ) -> tuple[list[int], Values, str | None]:
        """Begin the next epoch, if that is due, and find what callbacks have done since the snapshot.

        Returns the places in `Values.flat` that they set, the values of all variables, and what they did in
        words.
        """
        expected, values, reason = snapshot.values, outcome.values, None
        if begin_next is not None:
            begun = begin_next(aside)
            expected, reason = self._state.with_values(expected, begun.rates), begun.reason
            values = self._values(snapshot, aside)
        changed = self._state.differing(expected, values)
        if changed:
            reason = f"a callback set {self._state.variables[changed[0]].name}"
        if self._model.stop_training:
            reason = "a callback stopped the training"
        return changed, values, reason

    def _values(self, snapshot: Snapshot, aside: Values | None) -> Values:
        """Return what the variables hold behind a hook."""
        return self._state.read() if aside is None else self._state.read_at(snapshot.values)

    def go_back(self, snapshot: Snapshot) -> None:
        """Have the model hold a snapshot whose validation failed; what was trained since is given up."""
        self._state.restore(snapshot.values)

    def go_back_to_draws(self, snapshot: Snapshot) -> None:
        """Have the seeds of the training data's pipeline stand as at a snapshot; nobody may draw from it."""
        self._state.restore_pipeline(snapshot.values)

    def _deliver_unseen(
        self,
        snapshot: Snapshot,
        train_logs: Mapping[str, Any],
        results: Mapping[str, ValidationResult],
        *,
        trained_on: bool,
    ) -> Outcome:
        """Deliver to callbacks that look at the logs alone: the model stays as it is."""
        logs = self._logs(train_logs, results)
        self._callbacks.on_epoch_end(snapshot.epoch, logs)
        if any(not result.of_function for result in results.values()):
            self._model.stop_evaluating = False
            if not trained_on:
                self._reset_others()
                self._show_metrics(results)
        return Outcome(keras_metrics.python_logs(logs), False, snapshot.values, results)

    def _tested(
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
            outcome = self._suite.validate_live(name, snapshot, self._callbacks)
            if outcome is not None:
                tested[name] = outcome.result
                spans.append(outcome.span)
        # A hook around the validation may have set other weights; functions see those of `on_epoch_end`.
        if functions and (live or self._wants_test) and self._state.changed(snapshot.values):
            values = self._state.read()
            functions = {name: self._evaluate(snapshot, spans, name, values) for name in functions}
        return tested | functions, tuple(spans)

    def _logs(self, train_logs: Mapping[str, Any], results: Mapping[str, ValidationResult]) -> dict[str, Any]:
        """Return an epoch's logs, those of the training as Keras sees them after the validation."""
        logs, live = dict(train_logs), self._live_metrics()
        for result in results.values():
            if not result.of_function:
                logs |= {name: value for name, value in result.metrics.items() if name in live}
        return {**logs, **prefixed(results)}

    def _show_metrics(self, results: Mapping[str, ValidationResult]) -> None:
        """Leave the last validation's state in the model's metrics, as Keras does."""
        for result in results.values():
            if result.metric_state:
                self._state.set_metrics(result.metric_state)

    def _reset_others(self) -> None:
        """Set metrics back that the model has got since the fit began, as Keras does when it validates."""
        keras_metrics.reset_others(self._model, {id(h) for v in self._state.metrics for h in v.handles})

    def _evaluate_set(self, name: str, values: Values) -> ValidationResult:
        return self._suite.evaluate(name, values)

    def _evaluate(self, snapshot: Snapshot, spans: list[Span], name: str, values: Values) -> ValidationResult:
        """Evaluate values while the training waits."""
        start_s = time.monotonic()
        result = self._evaluate_set(name, values)
        thread, end_s = threading.current_thread().name, time.monotonic()
        spans.append(Span("validate", thread, start_s, end_s, snapshot.epoch, snapshot.step))
        return result

    def _test(
        self, snapshot: Snapshot, name: str, result: ValidationResult, spans: list[Span], *, is_first: bool
    ) -> ValidationResult:
        """Replay `on_test_*` around a validation that is already done; those made anew are in `spans`."""
        self._model.stop_evaluating = False
        if self._wants_test:
            begin_test(self._callbacks, self._model)
        self._reset_others()
        if result.unread and not is_first:  # the first reset was made before the validation
            self._model.reset_metrics()
            pairs = zip(snapshot.values.metrics, self._state.read_metrics(), strict=True)
            if not all(same_bits(*pair) for pair in pairs):
                result = self._evaluate(snapshot, spans, name, self._state.read())
        elif self._wants_test and self._state.changed(snapshot.values):
            # Such as SwapEMAWeights: validation is to see other weights than those trained.
            result = self._evaluate(snapshot, spans, name, self._state.read())
        if self._wants_test:
            _replay_batches(self._model, self._state, result, self._callbacks)
        self._show_metrics({name: result})
        result = read_by_python(self._model, self._state, result)
        if not self._wants_test:
            return result
        self._callbacks.on_test_end(dict(result.metrics))
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
    model: keras.Model,
    state: ModelState,
    result: ValidationResult,
    callbacks: keras.callbacks.CallbackList,
) -> None:
    """Call the hooks of the batches of a validation that is done."""
    group = keras_training.steps_per_execution(model)
    if not result.metrics and not result.running:
        callbacks.on_test_batch_begin(0)  # of a batch that did not come
    for number, running in enumerate(result.running):
        callbacks.on_test_batch_begin(number * group)
        if running.state:  # another host keeps its own
            state.set_metrics(running.state)
        callbacks.on_test_batch_end((number + 1) * group - 1, running.logs)


def read_by_python(model: keras.Model, state: ModelState, result: ValidationResult) -> ValidationResult:
    """Return a result with the metrics as Python reads them from the model, if that is still to be done."""
    if not result.unread:
        return result
    state.set_metrics(result.metric_state)
    metrics = keras_metrics.python_logs(keras_metrics.metrics_or_logs(model, result.metrics))
    return replace(result, metrics=metrics, metric_state=state.read_metrics(), unread=False)


def evaluate_now(
    model: keras.Model, state: ModelState, suite: _Validations, callbacks: keras.callbacks.CallbackList
) -> dict[str, Any]:
    """Evaluate the model as it is on the only set of a suite, as `keras.Model.evaluate` does.

    Unless that is live, `on_test_begin` has been called.
    """
    for name in suite.live_sets(0):
        return dict(suite.evaluate_live(name, callbacks).metrics)
    if suite.reads_by_python():
        model.reset_metrics()
    result = suite.evaluate("", state.read())
    _replay_batches(model, state, result, callbacks)
    state.set_metrics(result.metric_state)
    logs = dict(read_by_python(model, state, result).metrics)
    callbacks.on_test_end(logs)
    return logs
