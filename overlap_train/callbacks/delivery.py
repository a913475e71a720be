"""G: calling the callbacks at an epoch's end with the model as it was then.

While the callbacks of epoch e run, the model's variables hold snapshot e; what training has done since is
put aside. So a checkpoint saves the weights that gave the logged numbers, and whatever a callback changes
is changed on those weights: a rollback is then simply not to go back to what was put aside. Where no
callback looks at the model, all of that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import keras

from overlap_train.callbacks.hooks import TEST_HOOKS, listens, looks_at_model
from overlap_train.records import ValidationResult, prefixed
from overlap_train.snapshot import ModelState, Snapshot, Values

__all__ = ["Delivery", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What the callbacks of an epoch's end did.

    Attributes:
        logs: the epoch's logs as the callbacks got them.
        stop: whether the training is to end with this epoch.
        changed: names of the variables that a callback changed.
        rolled_back: whether the model now stands at the snapshot, with the changes applied, and what was
            trained after it is gone.
        values: what the model's variables held right after the callbacks.
    """

    logs: Mapping[str, float]
    stop: bool
    changed: tuple[str, ...]
    rolled_back: bool
    values: Values


class Delivery:
    """Delivers epochs to callbacks, on the training thread."""

    def __init__(
        self,
        model: keras.Model,
        state: ModelState,
        callbacks: keras.callbacks.CallbackList,
        *,
        on_change: str,
        revalidate: Callable[[str, Values], ValidationResult],
    ) -> None:
        self._model = model
        self._state = state
        self._callbacks = callbacks
        self._on_change = on_change
        self._revalidate = revalidate
        self._wants_test = listens(callbacks.callbacks, *TEST_HOOKS)

    def deliver(
        self,
        snapshot: Snapshot,
        train_logs: Mapping[str, float],
        results: Mapping[str, ValidationResult],
        *,
        stops: bool,
        trained_on: bool,
    ) -> Outcome:
        """Calls `on_test_begin`, `on_test_end` and `on_epoch_end` for an epoch.

        Args:
            snapshot: the epoch's end.
            train_logs: the epoch's training metrics.
            results: of each validation set by its name; empty if the epoch was not validated.
            stops: whether the training was already told to stop inside this epoch.
            trained_on: whether steps have been made since the snapshot.
        """
        if not stops and not self._is_looked_at():
            logs = {**train_logs, **prefixed(results)}
            self._callbacks.on_epoch_end(snapshot.epoch, logs)
            # A validation in step with the training may have changed variables itself.
            values = snapshot.values if trained_on or not results else self._state.read()
            return Outcome(logs, False, (), False, values)
        aside = self._state.read() if trained_on else None
        stop_training = self._model.stop_training
        if aside is not None:
            self._state.restore(snapshot.values)
        self._model.stop_training = stops
        tested = {name: self._test(snapshot, name, result) for name, result in results.items()}
        logs = {**train_logs, **prefixed(tested)}
        self._callbacks.on_epoch_end(snapshot.epoch, logs)

        stop = bool(self._model.stop_training)
        changed = self._state.changed(snapshot.values)
        values = self._state.read()
        rolled_back = False
        if aside is not None:
            acts = bool(changed) or stop
            rolled_back = acts and self._on_change == "rollback"
            if not rolled_back:
                new = [(variable, variable.value.read_value()) for variable in changed]
                self._state.restore(aside)
                for variable, value in new:
                    variable.value.assign(value)
                self._model.stop_training = stop_training or stop
        return Outcome(logs, stop, tuple(variable.path for variable in changed), rolled_back, values)

    def _is_looked_at(self) -> bool:
        """Whether a callback might see or change the model; asked each time, as callbacks may be added."""
        stock = type(self._callbacks) is keras.callbacks.CallbackList
        return not stock or any(map(looks_at_model, self._callbacks.callbacks))

    def _test(self, snapshot: Snapshot, name: str, result: ValidationResult) -> ValidationResult:
        """Replays `on_test_*` around a validation that is already done."""
        if not self._wants_test:
            return result
        self._callbacks.on_test_begin()
        if self._state.changed(snapshot.values):
            # Such as SwapEMAWeights: validation is to see other weights than those trained.
            result = self._revalidate(name, self._state.read())
        for batch, metrics in enumerate(result.running):
            self._callbacks.on_test_batch_begin(batch)
            self._callbacks.on_test_batch_end(batch, metrics)
        self._callbacks.on_test_end(dict(result.metrics))
        return result
