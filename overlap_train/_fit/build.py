"""Builds what one `fit` consists of, and builds it anew when a callback has had its steps traced anew."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import keras

from overlap_train._callbacks.delivery import Delivery
from overlap_train._callbacks.grounds import Grounds
from overlap_train._callbacks.hooks import hook_that_waits, may_wait
from overlap_train._callbacks.inside import EpochHooks
from overlap_train._callbacks.late import LateHooks
from overlap_train._checkpoint.content import StartPoint
from overlap_train._checkpoint.resume import Resumer
from overlap_train._data.cursor import Cursor
from overlap_train._fit.checkpointing import build_resumer
from overlap_train._fit.course import Course, FitOutcome, Ledger
from overlap_train._fit.deliveries import Deliveries
from overlap_train._fit.epoch_training import EpochTraining
from overlap_train._fit.followers import agree_to_start, deliver_together, start_together
from overlap_train._fit.interrupts import Interrupted, Interrupts
from overlap_train._fit.lag import IdleCores, LagControl, reasons_to_wait
from overlap_train._fit.request import FitRequest
from overlap_train._fit.step_building import StepBuilder, look_only
from overlap_train._fit.validation_building import AT_ONCE, FitValidation, TraceTiming
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._support.reasons import Reason
from overlap_train._training.loops import Loop, Pace
from overlap_train._training.step import Step, require_optimizer
from overlap_train._training.xla import CompiledArrayLoop
from overlap_train._validation.backlog import Backlog
from overlap_train._validation.replica_metrics import counted
from overlap_train._validation.step_validations import StepValidations, deliver_step_validation
from overlap_train._validation.suite import ValidationSuite
from overlap_train._validation.validation_sources import ValidationSources
from overlap_train.errors import OverlapError
from overlap_train.monitoring.quiet import QuietProgress
from overlap_train.monitoring.recorder import Accounts
from overlap_train.options.threads import available_cores


@dataclass(frozen=True)
class FitParts:
    """What one `fit` consists of."""

    state: ModelState
    training: EpochTraining
    deliveries: Deliveries
    grounds: Grounds
    sources: ValidationSources
    start: Callable[[], StartPoint | None] = lambda: None  # goes on from the newest checkpoint, if any
    timing: TraceTiming = AT_ONCE
    reasons: tuple[Reason, ...] = ()  # why the training waits: the first, or all if nothing will be run


@dataclass
class FitBuilder:
    """Builds the parts of one `fit`. On the training thread."""

    _request: FitRequest
    _cursor: Cursor
    _callbacks: keras.callbacks.CallbackList
    _progress: QuietProgress
    _resources: contextlib.ExitStack
    _outcome: FitOutcome
    _: KW_ONLY
    looks_only: bool = False  # nothing will be run; Python's validation data is read to say what it is

    def __post_init__(self) -> None:
        request, resources = self._request, self._resources
        self._settings = request.settings
        self._validation = FitValidation(request, self._callbacks, resources, looks_only=self.looks_only)
        self._idle = IdleCores(available_cores())
        hosts = request.settings.hosts
        self._interrupts = Interrupts(passes_on=request.routed, insists=hosts.count == 1)
        self._is_open = self._is_said = False
        self._resumer: Resumer | None = None
        self._reason: Reason | None = None  # of the last message that it waits
        course = Course(request.epochs, request.initial_epoch)
        self.ledger = Ledger(request.settings.recorder, Accounts(self._outcome.start_s), course)

    def build(self, training: EpochTraining | None = None) -> FitParts:
        """Builds everything and traces it; a `training` goes on as it is, and the rest is built around it."""
        start_s = time.monotonic()
        try:
            return self._build(training)
        finally:
            self.ledger.accounts.prepared(self.ledger.span("trace", start_s, None).duration_s)

    def _build(self, training: EpochTraining | None) -> FitParts:
        if training is None:
            self._progress.preparing("tracing the training step")
            step, loop, pace = self._build_training()
        else:
            step, loop, pace = training.step, training.loop, training.pace
        timing = self._validation.timing()
        self._progress.preparing("tracing the validation")
        state, suite = self._validation.build(
            step, self._resources, timing, by_xla=isinstance(loop, CompiledArrayLoop)
        )
        reasons = self._reasons(step, suite)
        waits = self._settings.hosts.any(bool(reasons))  # for a callback that one host alone may have
        lag = 0 if waits else self._settings.validation.max_lag
        if suite and not (reasons or self.looks_only):
            self._say_how(lag)
        replaced = _replaced_evaluate(self._request.model)
        grounds = Grounds(
            self._callbacks,
            self._waiting_hook(suite),
            lambda: step.changed_metrics() or suite.changed_metric() or replaced(),
        )
        self._open(state, step)
        if self._resumer is not None:
            self._resumer.plan = lambda: loop.plan
            self._resumer.take(state)
        deliveries = self._build_deliveries(state, step, suite, grounds, max_lag=lag)
        training = EpochTraining(
            model=self._request.model,
            step=step,
            loop=loop,
            pace=pace,
            deliveries=deliveries,
            idle=self._idle,
            interrupts=self._interrupts,
            take_snapshot=functools.partial(self._take_snapshot, state),
            warm=training is not None and training.warm,
        )
        return FitParts(
            state,
            training,
            deliveries,
            grounds,
            self._validation.sources,
            start=functools.partial(self._start, state, deliveries.callbacks),
            timing=timing,
            reasons=reasons,
        )

    def _build_training(self) -> tuple[Step, Loop, Pace]:
        builder = self._step_builder()
        step = builder.build_step()
        loop, pace = builder.build_loop(step, self._progress.message)
        if loop.description:
            self._progress.message(f"plan: {loop.description}", detail=True)
        self._resources.enter_context(loop)
        if not self._settings.shared:
            loop.begin_warm_up(self._request.feed)  # while the validation is traced
        return step, loop, pace

    def _step_builder(self) -> StepBuilder:
        settings, request = self._settings, self._request
        require_optimizer(request.model)
        request.feed.prepare()
        if settings.replicas is not None:
            agree_to_start(request, settings.replicas, self._callbacks.callbacks)
            if request.counts_on_first:  # also what has been built now
                variables = request.model.metrics_variables
                self._resources.enter_context(counted(variables, by_first=True))
        steps, epochs = self._cursor.steps_per_epoch, request.epochs - request.initial_epoch
        return StepBuilder(request, self._callbacks.callbacks, None if steps is None else steps * epochs)

    def _open(self, state: ModelState, step: Step) -> None:
        """Opens, the first time, what is the same for the whole fit: signals, checkpoints, the evaluator."""
        if self._is_open:
            return
        self._is_open = True
        self._resources.enter_context(self._interrupts)
        request, validation = self._request, self._validation
        if request.checkpoints is not None:
            drawing, say = validation.sources.drawing(), self._progress.message
            resumer = build_resumer(request, state, step, drawing, say, self._resources)
            self._resumer = resumer
            self._settings.hosts.chief_first(
                lambda: resumer.accept(self._callbacks.callbacks) if resumer is not None else None
            )
        if validation.evaluator is not None:
            self._settings.hosts.chief_first(validation.evaluator.open)

    def _start(self, state: ModelState, callbacks: Any) -> StartPoint | None:
        """Puts all where the newest checkpoint has it; call it after `on_train_begin`."""
        if self._request.checkpoints is None:
            return None
        if self._settings.hosts.count > 1:
            return start_together(callbacks, self._resumer, self._cursor)
        assert self._resumer is not None
        return self._resumer.start(state, self._cursor, callbacks.on_epoch_begin)

    def _build_deliveries(
        self, state: ModelState, step: Step, suite: ValidationSuite, grounds: Grounds, *, max_lag: int
    ) -> Deliveries:
        settings, request = self._settings, self._request
        callbacks, delivery = self._build_delivery(state, step, suite, grounds)
        backlog = Backlog(settings.validation, suite, max_lag=max_lag)
        self._resources.callback(backlog.drop)
        # With on_change="continue" some may have to be called at once although the training runs ahead.
        waiting_hook = self._waiting_hook(suite)
        late = settings.hosts.count == 1 and not any(map(waiting_hook, self._callbacks.callbacks))
        hooks, resets_late = EpochHooks(request.model, callbacks), suite.reads_by_python()
        if resets_late or (late and may_wait(self._callbacks.callbacks)):
            hooks = LateHooks(
                *(request.model, callbacks, state, lambda: len(backlog) > 0),
                late=late,
                resets_late=resets_late,
            )
        lag = LagControl(
            backlog,
            self._progress.message,
            self._idle if suite.shares_cores and request.judges_overlap else None,
            streamed=request.streamed,
            required=settings.validation.overlap == "require",
        )
        return Deliveries(
            callbacks=callbacks,
            hooks=hooks,
            suite=suite,
            backlog=backlog,
            delivery=delivery,
            stepwise=self._step_validations(suite, callbacks),
            lag=lag,
            resumer=self._resumer,
            cursor=self._cursor,
            ledger=self.ledger,
            progress=self._progress,
            hosts=settings.hosts,
            timeout_s=settings.validation.timeout_s,
            check_interrupted=self._check_interrupted,
        )

    def _build_delivery(
        self, state: ModelState, step: Step, suite: ValidationSuite, grounds: Grounds
    ) -> tuple[Any, Delivery]:
        """Returns the callbacks, and what delivers epochs to them: on several hosts, to all of these."""
        request, callbacks = self._request, self._callbacks
        if self._settings.hosts.count > 1:
            return deliver_together(request, state, callbacks, suite)
        delivery = Delivery(
            request.model,
            state,
            callbacks,
            on_change=self._settings.validation.on_change,
            suite=suite,
            live_metrics=lambda: step.metrics.live,
            changed_decision=grounds.changed,
        )
        return callbacks, delivery

    def _step_validations(self, suite: ValidationSuite, callbacks: Any) -> StepValidations | None:
        """Returns what validates inside epochs, if the policy asks for it and there is something to do."""
        policy = self._settings.validation
        every_steps = policy.every_steps
        if not suite or every_steps is None:
            return None
        deliver = functools.partial(deliver_step_validation, callbacks.callbacks)
        return StepValidations(suite, every_steps, deliver, self._outcome.step_validations, policy.timeout_s)

    def require_overlap(self) -> None:
        """Raises OverlapError, before anything is called or drawn, if the training would have to wait.

        All is traced for that, and forgotten: the first hooks may set what the fit is to be traced with.
        """
        with contextlib.ExitStack() as resources:
            look_only(self._request, resources)
            step = self._step_builder().build_step()
            self._reasons(step, self._validation.build(step, resources)[1])

    def _reasons(self, step: Step, suite: ValidationSuite) -> tuple[Reason, ...]:
        """Returns why the training has to wait for its validations, and says so."""
        policy = self._settings.validation
        if policy.max_lag == 0 or not suite:
            return ()
        waits = reasons_to_wait(
            self._request, step, suite, self._callbacks.callbacks, self._waiting_hook(suite)
        )
        required = policy.overlap == "require" and not self.looks_only
        reasons = tuple(dict.fromkeys(waits if self.looks_only or required else itertools.islice(waits, 1)))
        if reasons and required:
            raise OverlapError(reasons)
        first = reasons[0] if reasons else None
        if first not in (None, self._reason):  # said once of what is built again
            self._progress.message(f"validating in step with the training: {first}")
        self._reason = first
        return reasons

    def _say_how(self, lag: int) -> None:
        """Says once how epochs are validated, where another one follows."""
        request = self._request
        if self._is_said or request.epochs - request.initial_epoch < 2:
            return
        self._is_said = True
        when = "while the next one is trained" if lag else "before the next one is trained (max_lag=0)"
        where = " on another host" if self._validation.evaluator is not None else ""
        self._progress.message(f"each epoch is validated{where} {when}")

    def _waiting_hook(self, suite: ValidationSuite) -> Callable[[keras.callbacks.Callback], str | None]:
        """Returns what says which hook of a callback keeps the training from running ahead."""
        watched = suite.runs_python or not self._request.feed.rewindable
        late = self._settings.hosts.count == 1  # which calls the hooks inside epochs alone
        return functools.partial(hook_that_waits, watched=watched, late=late)

    def _take_snapshot(self, state: ModelState, epoch: int) -> Snapshot:
        return Snapshot(epoch, self.ledger.course.step, state.read(), self._cursor.state())

    def _check_interrupted(self) -> None:
        # On several hosts all of them stop at the same call.
        if self._settings.hosts.count == 1 and self._interrupts.received is not None:
            raise Interrupted


def _replaced_evaluate(model: keras.Model) -> Callable[[], str | None]:
    """Returns what says which part of the model's validation has been replaced since now."""
    validates, tests = keras_training.validates_itself(model), model.test_function
    trains = model.train_function

    def replaced() -> str | None:
        if keras_training.validates_itself(model) != validates:
            return "the model's evaluate"
        if tests in (None, model.test_function) or model.train_function is not trains:
            return None  # or the model was compiled, which has its own message
        return "the model's test function"

    return replaced
