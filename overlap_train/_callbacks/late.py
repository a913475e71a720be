"""The hooks inside epochs while the training runs ahead: called late, in the order and number of Keras.

While an epoch waits for its validation, the next one is trained. Its `on_epoch_begin` is called in the
delivery, right behind the `on_epoch_end` that it follows under Keras and with the same weights in the model.
Whatever it changes is found by the comparison that is made there anyway. Hooks of batches that only note what
they are given are called behind the delivery, and none of an epoch that is taken back. A learning rate that
a schedule sets is the exception: the training needs it in time, so the schedule is asked once more
beforehand. On the training thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._callbacks.delivery import BeginNext, EpochBeginning
from overlap_train._callbacks.hooks import asks_schedule, is_declared_safe, overrides, wants_train_batches
from overlap_train._callbacks.inside import EpochHooks
from overlap_train._keras import metrics as keras_metrics
from overlap_train._snapshot import ModelState, StateVariable, Values, same_bits


class LateHooks(EpochHooks):
    """Calls the hooks inside epochs, or has them wait.

    While an earlier epoch has not been delivered, which `waits` tells, `late` hooks wait for its delivery,
    except those of callbacks that declare that they only watch. With `resets_late` the reset of the metrics,
    which runs Python, waits too; until then they are assumed to be reset as for the validation before.
    """

    def __init__(
        self,
        model: keras.Model,
        callbacks: Any,
        state: ModelState,
        waits: Callable[[], bool] = lambda: False,
        *,
        late: bool = False,
        resets_late: bool = False,
    ) -> None:
        super().__init__(model, callbacks)
        self._state = state
        self._waits = waits
        members = callbacks.callbacks if late else []
        self._late = [callback for callback in members if not is_declared_safe(callback)]
        self._at_once = [callback for callback in members if is_declared_safe(callback)]
        self._schedulers = [callback for callback in self._late if asks_schedule(callback)]
        self._any_begins = any(overrides(callback, "on_epoch_begin") for callback in self._late)
        self._any_batches = any(map(wants_train_batches, self._late))
        self._resets_late = resets_late
        self._begins: deque[int] = deque()
        self._batches: deque[tuple[int, str, int, dict[str, Any]]] = deque()
        self._begun_epoch: int | None = None
        self._reset_metrics: Sequence[tf.Tensor] | None = None

    @property
    def has_begun(self) -> bool:
        return self._begun_epoch is not None

    def begins_late(self, epoch: int) -> BeginNext | None:
        return self._begin_late if self._begins and self._begins[0] == epoch else None

    def epoch_begin(self, epoch: int) -> None:
        begun, self._begun_epoch = self._begun_epoch == epoch, None
        ahead = not begun and self._waits()
        if not begun and not (ahead and self._resets_late):
            self._model.reset_metrics()
        # One that is `begun` has been begun by the delivery that took this epoch back.
        if (ahead or begun) and (self._late or self._at_once):
            self._call_each(self._at_once, "on_epoch_begin", epoch, {})
        else:
            self._callbacks.on_epoch_begin(epoch)
        if ahead and (self._any_begins or self._resets_late):
            self._begins.append(epoch)  # first, as a schedule may raise what is due in its turn
            self._reset_metrics = self._state.read_metrics()
            self._ask_schedules(epoch)

    def _begin_late(self, trained: Values) -> EpochBeginning:
        """Call the first `on_epoch_begin` that waits; `trained` are the variables of its epoch."""
        self._begun_epoch = self._begins.popleft()
        expected, reason = self._reset_metrics, None
        if expected is None or self._resets_late:
            self._model.reset_metrics()
        else:  # without running code of the user's once more
            self._state.set_metrics(expected)
        if expected is not None and (name := self._other_metric(expected)) is not None:
            reason = f"the metrics' reset set {name} otherwise than for the validation before"
        before = self._state.read_metrics()
        self._call_each(self._late, "on_epoch_begin", self._begun_epoch, {})
        if (name := self._other_metric(before)) is not None:
            reason = f"a callback set {name}"
        rates = {place: trained.flat()[place] for place in self._places_of_rates()}
        return EpochBeginning(rates, reason)

    def _other_metric(self, values: Sequence[tf.Tensor]) -> str | None:
        """Return the name of the first variable of a metric that holds another value."""
        triples = zip(self._state.metrics, values, self._state.read_metrics(), strict=True)
        return next((variable.name for variable, old, new in triples if not same_bits(old, new)), None)

    def batch(self, epoch: int, hook: str, number: int, logs: Mapping[str, Any] | None = None) -> None:
        if not self._late or not self._waits():
            super().batch(epoch, hook, number, logs)
            return
        values = keras_metrics.python_logs(logs)
        self._call_each(self._at_once, hook, number, dict(values))
        if self._any_batches:
            self._batches.append((epoch, hook, number, values))

    def release(self, epoch: int) -> None:
        self._begun_epoch = None
        while self._begins and self._begins[0] <= epoch:  # where a stop is not obeyed at once
            self._call_each(self._late, "on_epoch_begin", self._begins.popleft(), {})
        while self._batches and self._batches[0][0] <= epoch:
            self._call_each(self._late, *self._batches.popleft()[1:])

    def drop(self) -> None:
        self._begins.clear()
        self._batches.clear()

    def _ask_schedules(self, epoch: int) -> None:
        """Have schedules set their learning rates, which they print in their turn only."""
        for callback in self._schedulers:
            verbose, callback.verbose = callback.verbose, 0
            try:
                callback.on_epoch_begin(epoch, {})
            finally:
                callback.verbose = verbose

    def _places_of_rates(self) -> list[int]:
        """Return the places in `ModelState.variables` of the learning rates that schedules set."""
        if not self._schedulers:
            return []
        optimizer = self._model.optimizer
        rates = [each.learning_rate for each in getattr(optimizer, "optimizers", [optimizer])]
        handles = {id(StateVariable.of_keras(r).handles[0]) for r in rates if isinstance(r, keras.Variable)}
        return [i for i, v in enumerate(self._state.variables) if id(v.handles[0]) in handles]

    def _call_each(
        self, callbacks: Sequence[keras.callbacks.Callback], hook: str, number: int, logs: dict[str, Any]
    ) -> None:
        """Call a hook as a `CallbackList` does: with one dict for all."""
        for callback in callbacks:
            if hook == "on_epoch_begin":
                callback.on_epoch_begin(number, logs)
            else:
                getattr(callback, hook)(number, logs=logs)
