"""One `fit`, from its first epoch to its last.

Everything here runs on the thread that called `fit`. Epochs are trained one after another; at the end of
each its snapshot goes to the validation, and the epoch joins those that wait. Between two training calls the
oldest of them is delivered if it is ready, and before a new epoch begins as many are waited for as the lag
demands. A delivery may roll the training back to its snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._fit.build import FitParts
from overlap_train._fit.checkpointing import describe_start
from overlap_train._fit.course import Course, Ledger
from overlap_train._fit.epoch_training import EpochTraining
from overlap_train._fit.followers import require_unchanged
from overlap_train._fit.interrupts import Interrupted
from overlap_train._fit.request import FitRequest
from overlap_train._inspection.traces import Traces
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import training as keras_training
from overlap_train._training.loops import StepsDone
from overlap_train._training.settings import TrainerSettings

# An interrupted fit delivers validations that end within this time.
_GRACE_S = 5.0


@dataclass(frozen=True)
class Opening:
    """Where a fit stands before its first step."""

    epoch: int
    begun: bool  # whether the first epoch's and batch's hooks have been called
    train_function: Any  # which a callback that compiles the model takes away


def open_fit(request: FitRequest, callbacks: Any, *, traced: bool) -> Opening:
    """Calls `on_train_begin`, and the hooks of the first epoch and batch unless the steps are `traced`.

    So a trace sees what callbacks set there. A training that may be resumed has to be traced before.
    """
    model = request.model
    model.stop_training = False
    function = keras_training.begin_training(model)
    keras_training.require_stock_function(model)
    callbacks.on_train_begin()
    epoch = keras_training.initial_epoch(model, request.initial_epoch)  # BackupAndRestore may have set it
    if traced or epoch >= request.epochs:
        return Opening(epoch, False, function)
    model.reset_metrics()
    callbacks.on_epoch_begin(epoch)
    if any(map(wants_train_batches, callbacks.callbacks)):
        request.feed.prepare()  # Keras has made the iterator before the first batch's hook
        callbacks.on_train_batch_begin(0)
    return Opening(epoch, True, function)


class FitSession:
    """Runs the epochs of one `fit` whose first hooks have been called.

    `renew` builds the parts anew; given the training, which goes on, it builds the others around that.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        parts: FitParts,
        opening: Opening,
        renew: Callable[[EpochTraining | None], FitParts],
    ) -> None:
        self._settings = settings
        self._model = settings.model
        self._take(parts)
        self._renew = renew
        self._opening: Opening | None = opening  # until the first call of steps
        self._epoch_begun = opening.begun
        self._train_function = opening.train_function
        self._last_logs: Mapping[str, Any] = {}
        self._ledger: Ledger = parts.training.ledger
        self._course: Course = self._ledger.course
        self._course.next_epoch = settings.hosts.from_chief(opening.epoch)
        self.ended = "completed"

    def _take(self, parts: FitParts) -> None:
        """Works with these parts from now on."""
        self._parts, self._training, self._deliveries = parts, parts.training, parts.deliveries

    def run(self) -> None:
        """Trains, validates and delivers every epoch, then calls `on_train_end`."""
        model, course = self._model, self._course
        self._resume()
        try:
            self._run_epochs()
        except Interrupted:
            self._deliver_in_grace()
            self._training.interrupts.pass_on()
        finally:
            self._training.cursor.settle()
        self._deliveries.release_step_validations()
        if isinstance(model.optimizer, keras.optimizers.Optimizer):
            with self._settings.scope():
                model.optimizer.finalize_variable_values(model.trainable_weights)
        last = max(course.logs, default=None)
        self._deliveries.callbacks.on_train_end(logs=None if last is None else dict(course.logs[last]))

    def _run_epochs(self) -> None:
        course = self._course
        while True:
            deliveries = self._deliveries
            # An epoch in which a callback has stopped is delivered first: that may yet undo the stop.
            stops = deliveries.stops or (len(deliveries) and self._model.stop_training)
            if course.next_epoch < course.epochs and not stops:
                self._train_ahead(course.next_epoch)
                self._deliveries.deliver_before(course.next_epoch, self._training.loop.splits)
            elif len(deliveries):
                deliveries.deliver_oldest()
            else:
                break
        deliveries.finish_step_validations()
        if deliveries.resumer is not None:
            deliveries.resumer.wait()
        if course.stopped:
            self.ended = "stopped"

    def _resume(self) -> None:
        """Goes on from the newest checkpoint, if there is one."""
        point, course = self._parts.start(), self._course
        if point is None:
            return
        course.next_epoch, course.step, course.stopped = point.epoch, point.step, point.stopped
        if point.logs:
            course.logs[point.epoch - 1] = point.logs
        self._epoch_begun = point.position.within
        self._model.stop_training = point.stopped
        describe_start(point, course, self._training.loop.plan, self._training.progress.message)

    def _train_ahead(self, epoch: int) -> None:
        """Trains an epoch; what it raises counts only if no delivery of an earlier epoch undoes it."""
        try:
            self._train_epoch(epoch)
        except Exception as error:
            if not self._deliveries.take_back(error):
                raise

    def _train_epoch(self, epoch: int) -> None:
        """Trains an epoch to its end, or until a delivery rolls it back."""
        cursor = self._training.cursor
        self._training.begin_epoch(epoch, begun=self._epoch_begun)
        self._epoch_begun = False
        if self._renew_if_unsettled():
            return
        broken_off = False
        while cursor.remaining() != 0:
            if self._deliveries.make_room():
                return
            # A training that is stopped before an epoch's first step makes one call all the same.
            done = self._train_call(epoch)
            if done.steps:  # the call that finds the end of the data may make none
                self._last_logs = done.logs
            if self._deliveries.deliver_ready() or (done.halted and self._halt(done)):
                return
            broken_off = bool(done.steps and self._model.stop_training)
            if done.exhausted or broken_off:
                break
            checkpoints = self._deliveries.checkpoints
            if checkpoints is not None and checkpoints.due() and cursor.remaining() != 0:
                checkpoints.write(self._training.take_snapshot(epoch))
        if self._ends_behind_all(epoch) and self._deliveries.deliver_all():
            return
        cursor.end_epoch(broken_off=broken_off)
        self._end_epoch(epoch)
        self._course.next_epoch = epoch + 1

    def _ends_behind_all(self, epoch: int) -> bool:
        """Whether all earlier epochs are delivered before an epoch ends.

        What comes then is building the validation, Python that reads metrics, or a draw in Keras's order.
        """
        suite = self._deliveries.suite
        first = suite.waits_for(epoch) or (self._parts.timing.is_provisional and suite.due(epoch))
        by_python = self._training.step.metrics.by_python or suite.reads_by_python()
        return first or by_python or self._deliveries.draws_in_order(epoch)

    def _train_call(self, epoch: int) -> StepsDone:
        """Makes one compiled call of training steps."""
        steps = self._training.agree_on_steps()
        opening, self._opening = self._opening, None
        self._training.begin_call(epoch, begun=opening is not None and opening.begun)
        self._renew_if_compiled()
        done = self._training.run_call(epoch, steps)
        if done.steps:
            self._deliveries.release_step_validations()
        self._training.show(epoch)
        self._deliveries.show()
        return done

    def _halt(self, done: StepsDone) -> bool:
        """Delivers all, then shows TerminateOnNaN the last step; returns whether the epoch is undone."""
        if self._deliveries.deliver_all():
            return True
        if self._training.calls_batches:
            return False  # it has got the step in its turn
        logs = keras_metrics.python_logs(done.logs)
        for callback in self._deliveries.callbacks.callbacks:
            if isinstance(callback, keras.callbacks.TerminateOnNaN):
                callback.on_train_batch_end(self._training.cursor.steps - 1, logs)
        if self._settings.hosts.count > 1:  # where the chief may have one of the user's own
            self._model.stop_training = self._settings.hosts.from_chief(bool(self._model.stop_training))
        return False

    def _end_epoch(self, epoch: int) -> None:
        """Takes the snapshot of an epoch's end and starts its validation."""
        self._renew_validation(epoch)
        training, accounts = self._training, self._ledger.accounts
        logs = training.logs(self._last_logs)
        train_logs = keras_metrics.python_logs(logs)  # callbacks get `logs`: Keras sorts nested ones once
        self._settings.hosts.check_same_logs(epoch, train_logs)
        training.name_slow_host(epoch)
        if self._deliveries.suite.reads_by_python(epoch):
            self._model.reset_metrics()  # for the validation; the next epoch is taken to begin with this, too
        start_s = time.monotonic()
        self._deliveries.suite.count_ahead(epoch, self._parts.state)
        snapshot = training.take_snapshot(epoch)
        self._ledger.charge("snapshot", start_s, epoch, "snapshot_s")
        self._deliveries.begin(snapshot, logs, stops=bool(self._model.stop_training))
        trained_s = accounts.trained_s(epoch)
        training.progress.epoch_trained(epoch, train_logs, trained_s)

    def _renew_if_compiled(self) -> None:
        """Has the parts built anew if a callback has had the train function made anew."""
        function = self._model.train_function
        if function is self._train_function:
            return
        if function is None:
            raise TypeError(
                "'NoneType' object is not callable: a callback has compiled the model, which takes its train "
                "function away, as under keras.Model.fit; let it call model.make_train_function() as well"
            )
        self._train_function = function
        self._build_anew("a callback rebuilt the train function; the step is traced again")

    def _renew_if_unsettled(self) -> bool:
        """Builds all anew if callbacks are called otherwise now; returns whether the epoch is undone."""
        hosts = self._settings.hosts
        if hosts.count > 1:
            hosts.chief_first(lambda: require_unchanged(self._parts.grounds.changed()))
            return False
        if (changed := self._parts.grounds.changed()) is None:
            return False
        if self._deliveries.deliver_all():
            return True
        self._build_anew(f"built again, because {changed}")
        return False

    def _renew_validation(self, epoch: int) -> None:
        """Reads validation data that is first due, and builds what waited or what Keras traces anew now."""
        suite, reason = self._deliveries.suite, None
        waited = suite.waits_for(epoch)
        is_as_expected = self._parts.sources.read(epoch, suite.waiting)
        hosts = self._settings.hosts
        if hosts.count > 1:
            setting = suite.changed_metric() if is_as_expected else "the shape of the validation data"
            hosts.all_do(lambda: require_unchanged(setting and f"{setting} was set"))
            return
        if is_as_expected and not waited:
            if not suite.due(epoch):
                return
            if self._parts.timing.is_provisional:
                Traces.forget(self._model, "test")
            elif (setting := suite.changed_metric()) is None:
                return
            else:
                reason = f"built again, because {setting} was set"
        self._build_anew(reason, self._training)

    def _build_anew(self, reason: str | None, training: EpochTraining | None = None) -> None:
        """Has the parts built anew, once all that is under way has been delivered; a `training` goes on."""
        deliveries = self._deliveries
        while len(deliveries):
            deliveries.deliver_oldest()
        deliveries.finish_step_validations()
        self._take(self._renew(training))
        if reason is not None:
            self._training.progress.message(reason)

    def _deliver_in_grace(self) -> None:
        """Delivers the epochs whose validations end soon, and gives the others up."""
        deliveries, interrupts = self._deliveries, self._training.interrupts
        interrupts.heed()
        names = self._settings.hosts.gather(interrupts.received)
        self.ended = f"interrupted by {next(name for name in names if name)}"
        deadline_s = time.monotonic() + _GRACE_S
        within = f"delivering what is finished within {_GRACE_S:g} s; a second signal ends it at once"
        self._training.progress.message(f"{self.ended}: {within}")
        deliveries.deliver_until(deadline_s)
        # A stop inside the epoch is in no checkpoint; what asked for it is called again from an older one.
        checkpoints = deliveries.checkpoints
        if checkpoints is not None and checkpoints.may_write() and not self._model.stop_training:
            checkpoints.write(self._training.take_snapshot(self._course.next_epoch))
        deliveries.give_up()
        if deliveries.resumer is not None:
            deliveries.resumer.wait()
