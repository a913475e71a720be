"""G: calling the callbacks at an epoch's end with the model as it was then.

While the callbacks of epoch e run, the model's variables hold snapshot e; what training has done since is put
aside. So a checkpoint saves the weights that gave the logged numbers, and whatever a callback changes is
changed on those weights: a rollback is then simply not to go back to what was put aside. Where no callback
looks at the model, all of that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import keras

from overlap_train._callbacks.hooks import TEST_HOOKS, listens, looks_at_model
from overlap_train._callbacks.replay import Replay, Validations
from overlap_train._keras import metrics as keras_metrics
from overlap_train._snapshot import ModelState, Snapshot, Values
from overlap_train._support.results import prefixed
from overlap_train.records import Span, ValidationResult


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


@dataclass(eq=False)
class Delivery:
    """Delivers epochs to callbacks, on the training thread.

    `live_metrics` returns the names of metrics whose result is a variable itself, and `changed_decision` why
    callbacks have to be called otherwise than has been decided, or None.
    """

    _model: keras.Model
    state: ModelState
    _callbacks: keras.callbacks.CallbackList
    _: KW_ONLY
    on_change: str
    suite: Validations
    live_metrics: Callable[[], frozenset[str]] = frozenset
    changed_decision: Callable[[], str | None] = lambda: None

    def __post_init__(self) -> None:
        wants_test = listens(self._callbacks.callbacks, *TEST_HOOKS)
        self._replay = Replay(self._model, self.state, self._callbacks, self.suite, wants_test)
        self.stopped_in = -1  # the last epoch inside which a hook has set `stop_training`

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
        since. A stop that hooks of later epochs have set is hidden meanwhile; one that a thread or a handler
        of signals has set is not, and holds. `ended` is called behind `on_epoch_end`; `begin_next` calls the
        `on_epoch_begin` of an epoch that has begun.
        """
        live = self.suite.live_sets(snapshot.epoch)
        looked_at = any(map(looks_at_model, self._callbacks.callbacks))  # callbacks may have been added
        unread = any(result.unread for result in results.values())
        if not (stops or live or looked_at or unread or begin_next is not None):
            outcome = self._deliver_unseen(snapshot, train_logs, results, trained_on=trained_on)
            ended(outcome)
            return outcome
        aside = self.state.read() if trained_on else None
        function = self._model.train_function
        if aside is not None:
            self.state.restore(snapshot.values)
        hidden = self._model.stop_training and self.stopped_in > snapshot.epoch
        if hidden:
            self._model.stop_training = False
        tested, spans = self._replay.tested(snapshot, results, live)
        logs = self._logs(train_logs, tested)
        self._callbacks.on_epoch_end(snapshot.epoch, logs)

        stop = bool(self._model.stop_training)
        values = self.state.read() if aside is None else self.state.read_at(snapshot.values)
        outcome = Outcome(keras_metrics.python_logs(logs), stop, values, tested, spans)
        ended(outcome)
        if aside is None:
            return outcome
        changed, values, reason = self._acted(snapshot, outcome, aside, None if stop else begin_next)
        reason = reason or self.changed_decision()
        if reason is None and self._model.train_function is not function:
            reason = "a callback compiled the model anew"
        rolled_back = reason is not None and self.on_change == "rollback"
        if rolled_back:
            self.stopped_in = -1
        else:
            self._go_on(aside, changed, values)
            if hidden:
                self._model.stop_training = True
        return replace(outcome, rolled_back=rolled_back, reason=reason)

    def added(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what callbacks have put into the logs of the epoch delivered last, in each epoch so far."""
        history = self._model.history
        if not isinstance(history, keras.callbacks.History):  # which a callback may have set
            return {}
        ours = {name: values for name, values in history.history.items() if name not in logs}
        return {name: values[-1] for name, values in ours.items() if len(values) == len(history.epoch)}

    def _go_on(self, aside: Values, changed: list[int], values: Values) -> None:
        """Have the model hold what was put aside, with those of the values that callbacks have changed."""
        flat = values.flat()
        self.state.restore(aside)
        self.state.set_values(changed, [flat[index] for index in changed])

    def _acted(
        self, snapshot: Snapshot, outcome: Outcome, aside: Values, begin_next: BeginNext | None
    ) -> tuple[list[int], Values, str | None]:
        """Begin the next epoch, if that is due, and return what callbacks have done since the snapshot.

        That is the places in `Values.flat` that they set, the values of all variables, and why in words.
        """
        expected, values, reason = snapshot.values, outcome.values, None
        if begin_next is not None:
            begun = begin_next(aside)
            expected, reason = self.state.with_values(expected, begun.rates), begun.reason
            values = self.state.read_at(snapshot.values)
        changed = self.state.differing(expected, values)
        if changed:
            reason = f"a callback set {self.state.variables[changed[0]].name}"
        if self._model.stop_training:
            reason = "the training was stopped"
        return changed, values, reason

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
                keras_metrics.reset_others(self._model, self.state.metric_handles)
                for result in results.values():
                    if result.metric_state:
                        self.state.set_metrics(result.metric_state)
        stop = self._model.stop_training and not trained_on
        return Outcome(keras_metrics.python_logs(logs), bool(stop), snapshot.values, results)

    def _logs(self, train_logs: Mapping[str, Any], results: Mapping[str, ValidationResult]) -> dict[str, Any]:
        """Return an epoch's logs, those of the training as Keras sees them after the validation."""
        logs, live = dict(train_logs), self.live_metrics()
        for result in results.values():
            if not result.of_function:
                logs |= {name: value for name, value in result.metrics.items() if name in live}
        return {**logs, **prefixed(results)}
