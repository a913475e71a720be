"""Builds what one `fit` consists of, and builds it anew when a callback has had its steps traced anew."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.delivery import Checks, Delivery
from overlap_train._callbacks.hooks import hook_that_waits
from overlap_train._callbacks.late import EpochHooks
from overlap_train._callbacks.listeners import Grounds, listeners, own_hooks, remembering
from overlap_train._checkpoint.resume import Resumer
from overlap_train._data.cursor import Cursor
from overlap_train._fit.callback_list import listened_to
from overlap_train._fit.checkpointing import build_resumer, share_start
from overlap_train._fit.course import Course, Ledger
from overlap_train._fit.deliveries import Deliveries
from overlap_train._fit.elsewhere import ElsewhereSuite, Evaluator
from overlap_train._fit.epoch_training import EpochTraining
from overlap_train._fit.followers import AnyDelivery, AnyStart, agree_to_start, deliver_together
from overlap_train._fit.interrupts import Interrupted, Interrupts
from overlap_train._fit.lag import IdleCores, LagControl, reasons_to_wait
from overlap_train._fit.request import FitRequest
from overlap_train._fit.step_building import StepBuilder
from overlap_train._fit.validation_building import (
    AT_ONCE,
    FirstTrace,
    SuiteBuilder,
    TraceTiming,
    make_sources,
)
from overlap_train._inspection.traces import Traces
from overlap_train._keras import optimizers as keras_optimizers
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._support.fit_arguments import epoch_selector
from overlap_train._support.reasons import Reason
from overlap_train._training.loops import Loop, Pace
from overlap_train._training.step import Step, require_optimizer
from overlap_train._validation.backlog import Backlog, StepValidations, deliver_step_validation
from overlap_train._validation.functions import FunctionRequest, add_functions
from overlap_train._validation.private_model import Attributes, watched
from overlap_train._validation.suite import ValidationSuite
from overlap_train._validation.validation_sources import ValidationSources
from overlap_train.errors import OverlapError
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.recorder import Accounts
from overlap_train.options.threads import available_cores
from overlap_train.records import StepValidation

__all__ = ["FitBuilder", "FitParts"]


@dataclass(frozen=True)
class FitParts:
    """What one `fit` consists of.

    `resumption` puts all where a checkpoint has it, `is_provisional` says that the validation is to be built
    anew when it is next due, since callbacks may set what Keras's trace of it will hold, and `reasons` are
    why the training waits: the first, or all if the fit is only looked at.
    """

    state: ModelState
    training: EpochTraining
    deliveries: Deliveries
    callbacks: Any
    interrupts: Interrupts
    grounds: Grounds
    given: ValidationSources
    resumption: AnyStart | None = None
    is_provisional: bool = False
    reasons: tuple[Reason, ...] = ()


class FitBuilder:
    """Builds the parts of one `fit`. On the training thread.

    `inside` takes the results of validations inside epochs. With `looks_only` nothing will be run, and
    Python's validation data is read to be told about.
    """

    def __init__(
        self,
        request: FitRequest,
        cursor: Cursor,
        callbacks: keras.callbacks.CallbackList,
        progress: ProgressReporter,
        resources: contextlib.ExitStack,
        inside: list[StepValidation],
        *,
        looks_only: bool = False,
    ) -> None:
        self._given = make_sources(
            request.settings,
            request.sets,
            now=False,
            python_now=looks_only or not request.reads_when_due,
            written=request.feed.files,
            timeout_s=request.settings.validation.timeout_s,
        )
        resources.callback(self._given.close)
        self._request = request
        self._settings = request.settings
        self._cursor = cursor
        self._callbacks = callbacks
        self._progress = progress
        self._resources = resources
        self._inside = inside
        self._idle = IdleCores(available_cores())
        self._interrupts: Interrupts | None = None
        self._resumer: Resumer | None = None
        self._resumption: AnyStart | None = None
        self._told: Reason | None = None
        self._looks_only = looks_only
        self._first_trace = FirstTrace(request, self._given, callbacks, looks_only=looks_only)
        policy = request.settings.evaluator
        self._evaluator: Evaluator | None = None
        if request.elsewhere and policy is not None:
            self._evaluator = Evaluator(
                policy,
                request.model,
                request.settings.recorder.add,
                batch_by_batch=listened_to(callbacks),
                idle=looks_only or not request.settings.hosts.is_chief,
            )
            resources.enter_context(self._evaluator)
        course = Course(request.epochs, request.initial_epoch)
        self.ledger = Ledger(request.settings.recorder, Accounts(), course)

    def build(self, kept: EpochTraining | None = None) -> FitParts:
        """Builds everything and traces it; what the fit keeps all along is built the first time.

        `kept` trains and goes on as it is, where only the validation is built anew.
        """
        settings, request = self._settings, self._request
        step, loop, pace = self._build_training() if kept is None else (kept.step, kept.loop, kept.pace)
        timing = self._first_trace.timing()
        state, suite = self._build_validation(step, timing)
        reasons = () if timing.is_first else self._reasons(step, suite)
        lag = 0 if reasons or timing.is_first else settings.validation.max_lag
        grounds = Grounds(self._callbacks, self._waiting_hook(suite), suite.changed_metric)
        callbacks, delivery = self._build_delivery(state, suite, step, grounds)
        backlog = Backlog(settings.validation, suite, max_lag=lag)
        self._resources.callback(backlog.drop)
        interrupts = self._keep_all_along(state, step)
        if self._resumer is not None:
            self._resumer.watch_plan(lambda: loop.plan)
        # With on_change="continue" some may have to be called at once although the training runs ahead.
        late = self._can_be_late() and not any(map(self._waiting_hook(suite), listeners(self._callbacks)))
        hooks = EpochHooks(
            request.model,
            callbacks,
            state,
            lambda: len(backlog) > 0,
            late=late,
            resets_late=suite.reads_by_python(),
        )
        deliveries = self._deliveries(hooks, callbacks, suite, backlog, delivery)
        training = EpochTraining(
            model=request.model,
            callbacks=callbacks,
            hooks=hooks,
            step=step,
            loop=loop,
            pace=pace,
            cursor=self._cursor,
            suite=suite,
            stepwise=deliveries.stepwise,
            resumer=self._resumer,
            lag=deliveries.lag,
            idle=self._idle,
            ledger=self.ledger,
            progress=self._progress,
            hosts=settings.hosts,
            interrupts=interrupts,
            take_snapshot=functools.partial(self._take_snapshot, state),
            warm=kept is not None and kept.warm,
        )
        found = (self._given, self._resumption, timing.is_provisional, reasons)
        return FitParts(state, training, deliveries, callbacks, interrupts, grounds, *found)

    def _build_delivery(
        self, state: ModelState, suite: ValidationSuite, step: Step, grounds: Grounds
    ) -> tuple[Any, AnyDelivery]:
        """Returns the callbacks, and what delivers epochs to them: on several hosts, to all of these."""
        request, callbacks = self._request, self._callbacks
        if self._settings.hosts.count > 1:
            return deliver_together(request, state, callbacks, suite)
        as_before = functools.partial(watched, request.model, looked_at=bool(request.functions))
        checks = Checks(lambda: step.metrics.live, grounds.changed, as_before)
        on_change = self._settings.validation.on_change
        delivery = Delivery(request.model, state, callbacks, on_change=on_change, suite=suite, checks=checks)
        return callbacks, delivery

    def _keep_all_along(self, state: ModelState, step: Step) -> Interrupts:
        """Opens what the fit keeps all along, if it is the first time; returns the signals that have come."""
        if self._interrupts is None:
            alone = self._settings.hosts.count == 1
            interrupts = Interrupts(passes_on=self._request.routed, insists=alone)
            self._interrupts = self._resources.enter_context(interrupts)
            if self._request.checkpoints is not None:
                found = (self._given.drawing(), self._progress.message, self._resources)
                self._resumer = build_resumer(self._request, state, step, *found)
                self._resumption = share_start(self._request, self._resumer)
            if self._evaluator is not None:
                self._settings.hosts.chief_first(self._evaluator.open)
        return self._interrupts

    def accept_callbacks(self) -> None:
        """Makes sure that the checkpoint from which the fit goes on is of these callbacks."""
        if self._resumption is not None:
            self._resumption.accept(remembering(self._callbacks))

    def require_overlap(self) -> None:
        """Makes sure that the training may run ahead, before anything is called or drawn.

        All is traced for that, and forgotten: the first hooks may set what the fit is to be traced with.

        Raises an OverlapError if it has to wait, as far as is known before Python's validation data is read.
        """
        model, kept = self._request.model, self._resources
        with contextlib.ExitStack() as self._resources, self._request.feed.looked_at():
            self._resources.enter_context(Traces.set_aside(model))
            self._resources.enter_context(keras_optimizers.UnbuiltAgain(model))
            self._resources.callback(self._given.reopen)
            step = self._step_builder().build_step()
            self._reasons(step, self._build_validation(step)[1])
        self._resources = kept

    def _reasons(self, step: Step, suite: ValidationSuite) -> tuple[Reason, ...]:
        """Returns why the training has to wait for its validations, and tells it."""
        settings, feed, found = self._settings, self._request.feed, self._callbacks
        policy = settings.validation
        if policy.max_lag == 0 or not suite:
            return ()
        if settings.hosts.count > 1:  # which would have to keep the same number of batches
            policy = dataclasses.replace(policy, keep_bytes=0)
        waits = reasons_to_wait(
            policy,
            feed,
            step,
            suite,
            listeners(found),
            waiting_hook=self._waiting_hook(suite),
            model=self._request.model,
        )
        every = self._looks_only or policy.overlap == "require"
        reasons = tuple(dict.fromkeys(waits if every else itertools.islice(waits, 1)))
        if reasons and policy.overlap == "require" and not self._looks_only:
            raise OverlapError(reasons)
        first = reasons[0] if reasons else None
        if first not in (None, self._told):  # nothing new is told of what is built again
            self._progress.message(f"validating in step with the training: {first}")
        self._told = first
        return reasons

    def _waiting_hook(self, suite: ValidationSuite) -> Callable[[keras.callbacks.Callback], str | None]:
        """Returns what says which hook of a callback keeps the training from running ahead."""
        watched = suite.runs_python or not self._request.feed.rewindable
        return functools.partial(hook_that_waits, watched=watched, late=self._can_be_late())

    def _can_be_late(self) -> bool:
        """Whether hooks inside epochs are this host's alone to call, and the list's to pass on only."""
        return self._settings.hosts.count == 1 and not own_hooks(self._callbacks)

    def _build_training(self) -> tuple[Step, Loop, Pace]:
        settings, request = self._settings, self._request
        builder = self._step_builder()
        step = builder.build_step()
        loop, pace = builder.build_loop(step, self._progress.message)
        self._resources.enter_context(loop)
        if not settings.shared:
            loop.begin_warm_up(request.feed)  # while the validation is traced
        return step, loop, pace

    def _step_builder(self) -> StepBuilder:
        settings, request = self._settings, self._request
        require_optimizer(request.model)
        request.feed.prepare()
        if settings.replicas is not None:
            agree_to_start(request, settings.replicas, listeners(self._callbacks))
        steps, epochs = self._cursor.steps_per_epoch, request.epochs - request.initial_epoch
        total = None if steps is None else steps * epochs
        return StepBuilder(settings, request.feed, listeners(self._callbacks), request.checkpoints, total)

    def _build_validation(
        self, step: Step, timing: TraceTiming = AT_ONCE
    ) -> tuple[ModelState, ValidationSuite]:
        settings, request, model = self._settings, self._request, self._request.model
        inside = settings.validation.every_steps
        once = request.epochs - request.initial_epoch <= 1 and not inside
        builder = SuiteBuilder(
            settings,
            request.sets,
            self._callbacks,
            self._resources,
            self._given,
            once=once,
            timing=timing,
        )
        state, suite = builder.build_beside(request.feed, step)
        if self._evaluator is not None:
            return state, self._suite_elsewhere(self._evaluator)
        functions = FunctionRequest(
            model,
            state,
            request.feed.element_spec,
            request.validation_freq,
            settings.recorder.add,
            self._progress.message,
            settings.hosts,
        )
        # Some would be made twice, because the suite is built anew before they are called.
        often = [self._request.sets[name].freq for name in suite.waiting]
        made = {
            name: each
            for name, each in request.functions.items()
            if not _is_as_often(often, request.validation_freq if each.freq is None else each.freq)
        }
        add_functions(suite, made, functions, self._resources)
        return state, suite

    def _suite_elsewhere(self, evaluator: Evaluator) -> ValidationSuite:
        """Returns the suite whose validations an evaluator makes."""
        settings, selectors = self._settings, list(map(epoch_selector, self._request.elsewhere))
        return ElsewhereSuite(
            evaluator,
            lambda epoch: any(selects(epoch) for selects in selectors),
            on_error=settings.validation.on_error,
            hosts=settings.hosts,
        )

    def _deliveries(
        self,
        hooks: EpochHooks,
        callbacks: Any,
        suite: ValidationSuite,
        backlog: Backlog,
        delivery: AnyDelivery,
    ) -> Deliveries:
        settings, request = self._settings, self._request
        lag = LagControl(
            backlog,
            self._progress.message,
            self._idle if suite.shares_cores else None,
            streamed=request.streamed,
            judges_overlap=request.judges_overlap,
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

    def _step_validations(self, suite: ValidationSuite, callbacks: Any) -> StepValidations | None:
        """Returns what validates inside epochs, if the policy asks for it and there is something to do."""
        every_steps = self._settings.validation.every_steps
        if not suite or every_steps is None:
            return None
        made = StepValidations(
            suite,
            every_steps,
            functools.partial(deliver_step_validation, callbacks.callbacks),
            self._inside,
        )
        if self._resumer is not None and self._settings.hosts.count == 1:
            self._resumer.watch(made.under_way)
        return made

    def _take_snapshot(self, state: ModelState, epoch: int) -> Snapshot:
        attributes = Attributes.of(self._request.model) if self._request.functions else None
        return Snapshot(epoch, self.ledger.course.step, state.read(), self._cursor.state(), attributes)

    def _interrupted(self) -> bool:
        return self._interrupts is not None and self._interrupts.received is not None

    def _check_interrupted(self) -> None:
        # On several hosts all of them stop at the same call.
        if self._settings.hosts.count == 1 and self._interrupted():
            raise Interrupted


def _is_as_often(frequencies: Sequence[Any], freq: Any) -> bool:
    """Whether something is due with one of some frequencies whenever it is with another."""
    known = [1, freq] if isinstance(freq, int) else [1]
    return any(isinstance(each, int) and each in known for each in frequencies)
