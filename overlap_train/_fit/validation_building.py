"""The validation of a `fit` or an `evaluate`: traced, with its workers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.hooks import (
    TRAIN_BATCH_HOOKS,
    acts_in_test_batches,
    may_set_before_tests,
    overrides,
    runs_own_code,
)
from overlap_train._callbacks.listeners import listeners
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import captured_by
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._fit.callback_list import listened_to
from overlap_train._fit.draws import is_drawn_in_order
from overlap_train._fit.request import FitRequest
from overlap_train._inspection.traced import CapturedVariable, union
from overlap_train._inspection.traces import Traces
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState
from overlap_train._support.fit_arguments import epoch_selector
from overlap_train._training.settings import TrainerSettings
from overlap_train._training.step import Step
from overlap_train._validation.sets import PreparedSet, SetRequest, build_suite, prepare_sets, rows_together
from overlap_train._validation.suite import ValidationSuite
from overlap_train._validation.validation_sources import ValidationSources
from overlap_train.options.validation import ValidationSet

__all__ = ["AT_ONCE", "FirstTrace", "SuiteBuilder", "TraceTiming", "make_sources"]


def make_sources(
    settings: TrainerSettings,
    sets: Mapping[str, ValidationSet],
    *,
    now: bool = True,
    python_now: bool = True,
    written: frozenset[str] = frozenset(),
    timeout_s: float | None = None,
) -> ValidationSources:
    """Returns the data of validation sets.

    `now` reads all of it when it is first asked for, and `python_now` what Python makes; else it is read when
    a validation is due. `written` are the files in which the training data is cached. `timeout_s` bounds the
    reading.
    """
    device = "CPU:0" if settings.devices else None  # each of them gets its own copy
    return ValidationSources(
        settings.model,
        sets,
        now=now,
        python_now=python_now,
        device=device,
        written=written,
        timeout_s=timeout_s,
    )


@dataclass(frozen=True)
class TraceTiming:
    """When the validation is traced.

    The sets in `waits` are left until they are due. `is_first` says that Keras traces the next validation
    behind hooks of the user's, so that Keras makes it. What `is_provisional` is built anew when next due.
    """

    waits: frozenset[str] = frozenset()
    is_first: bool = False
    is_provisional: bool = False


AT_ONCE = TraceTiming()

# Keras traces the first validation behind these.
_BEFORE_TRACE = ("on_test_begin", "on_test_batch_begin")


class FirstTrace:
    """Decides when the validation of a `fit` is traced, so that its trace holds what Keras's would.

    Keras traces a validation when it first makes one, and sees what callbacks and data have set until then.
    Where only Keras's own code runs before that, it may be traced at once. On the training thread.
    """

    def __init__(
        self,
        request: FitRequest,
        given: ValidationSources,
        callbacks: keras.callbacks.CallbackList,
        *,
        looks_only: bool = False,
    ) -> None:
        self._request = request
        self._given = given
        self._callbacks = callbacks
        self._looks_only = looks_only
        self._test_function: Any = None
        self._may_differ = False
        self._first_made = False

    def timing(self) -> TraceTiming:
        """Returns when to trace what is built now; the sets that have been due are `given.begun`."""
        request, begun = self._request, self._given.begun
        if not request.sets:
            return AT_ONCE
        function = keras_training.test_function(request.model)
        if function is not self._test_function:  # with another one Keras traces anew
            self._test_function, self._first_made = function, False
            begun.clear()
        if not begun:
            self._may_differ = self._may_be_set_before()
        if not self._may_differ:
            return AT_ONCE
        if begun and not self._first_made and self._runs_own_code(_BEFORE_TRACE):
            self._first_made = True
            return TraceTiming(self._waiting(), is_first=True, is_provisional=True)
        return TraceTiming(self._waiting(), is_provisional=not (begun or request.reads_when_due))

    def _waiting(self) -> frozenset[str]:
        waits = self._request.reads_when_due and not self._looks_only
        return frozenset(self._request.sets).difference(self._given.begun) if waits else frozenset()

    def _may_be_set_before(self) -> bool:
        """Whether code of the user's runs before the first validation."""
        settings, request, model = self._request.settings, self._request, self._request.model
        if settings.hosts.count > 1 or settings.validation.every_steps is not None:
            return False
        if Traces.of(model).holds("test", keras_training.test_function(model)):
            return False
        epoch, hooks = request.initial_epoch, [*TRAIN_BATCH_HOOKS, *_BEFORE_TRACE]
        at_first = all(epoch_selector(chosen.freq)(epoch) for chosen in request.sets.values())
        if not at_first or request.checkpoints is not None:
            hooks += ["on_train_begin", "on_epoch_begin", "on_epoch_end"]
        return request.feed.runs_python or self._runs_own_code(hooks)

    def _runs_own_code(self, hooks: Sequence[str]) -> bool:
        return any(runs_own_code(callback, hooks) for callback in listeners(self._callbacks))


class SuiteBuilder:
    """Builds the validation of one `fit` or `evaluate`. On the training thread.

    Without `given` the data is read now. With `once` there is one validation, beside which nothing is
    trained. For a training elsewhere `apart` says whether its callbacks listen to the batches. `batch_spec`
    is of a batch of the first set, once that has been traced; None if it is not looked at.
    """

    batch_spec: Any = None

    def __init__(
        self,
        settings: TrainerSettings,
        sets: Mapping[str, ValidationSet],
        callbacks: keras.callbacks.CallbackList,
        resources: contextlib.ExitStack,
        given: ValidationSources | None = None,
        *,
        once: bool = False,
        apart: bool | None = None,
        timing: TraceTiming = AT_ONCE,
    ) -> None:
        self._settings = settings
        self._given = given if given is not None else make_sources(settings, sets)
        self._sets = sets
        self._callbacks = callbacks
        self._resources = resources
        self._once = once
        self._apart = apart
        self._timing = timing
        self._listened = listened_to(callbacks) if apart is None else apart

    def build_beside(self, feed: Feed, step: Step) -> tuple[ModelState, ValidationSuite]:
        """Returns the variables of a training and its suite."""
        settings = self._settings
        captured = [*union([step.traced, step.inspected, feed.preparation]), *feed.captured]
        if (waits := self._settings.hosts.waits) is not None:
            clocks = set(map(id, waits.handles))
            captured = [variable for variable in captured if id(variable.handle) not in clocks]
        written = step.traced.written if step.traced is not None else ()
        beside = settings.validation.max_lag > 0 and not self._once

        def is_in_order(chosen: ValidationSet) -> bool:
            waits = beside and not chosen.concurrent
            return waits and is_drawn_in_order(feed, chosen.data, settings.model, written)

        return self.build(captured, drawn=feed.drawn_variables, is_in_order=is_in_order)

    def build(
        self,
        captured: Iterable[CapturedVariable] = (),
        *,
        drawn: Iterable[CapturedVariable] = (),
        within_evaluate: bool = False,
        is_in_order: Callable[[ValidationSet], bool] = lambda chosen: False,
    ) -> tuple[ModelState, ValidationSuite]:
        """Traces the validation, lists all variables, and starts the workers.

        To `drawn` the pipeline of the training data writes; that of a validation set may do so as well, in
        step with the training.
        """
        request = self._request(within_evaluate=within_evaluate)
        prepared = prepare_sets(request, self._sets)
        for each in prepared:
            if isinstance(each.batches, StreamedBatches):
                each.batches.in_order = is_in_order(each.chosen)
        self.batch_spec = next((p.batches.element_spec for p in prepared if p.batches is not None), None)
        used = [variable for each in prepared if each.step is not None for variable in each.step.variables]
        model, trains = self._settings.model, not within_evaluate
        written = [variable for each in prepared for variable in _written(each)]
        read = [variable for each in prepared for variable in _captured(each)]  # which callbacks may set
        listed = [*captured, *used, *written, *read]
        state = ModelState(model, listed, drawn=[*drawn, *written], trains=trains)
        suite = build_suite(request, prepared, state, self._settings.recorder.add, self._resources)
        return state, suite

    def _request(self, *, within_evaluate: bool) -> SetRequest:
        settings = self._settings
        listening = [] if self._apart is not None else listeners(self._callbacks)
        acting = next((type(c).__name__ for c in listening if acts_in_test_batches(c)), None)
        if self._timing.is_first:
            sets = [c for c in listening if runs_own_code(c, _BEFORE_TRACE)]
        else:
            sets = [c for c in listening if may_set_before_tests(c)]
        setting = type(sets[0]).__name__ if sets else None
        looks = self._listened or any(
            overrides(c, "on_test_begin") and not keras_models.is_stock_method(type(c)) for c in listening
        )
        alone = acting is None and setting is None and self._validates_alone()
        return SetRequest(
            settings,
            self._given,
            listened=self._listened,
            within_evaluate=within_evaluate,
            once=self._once,
            acts=acting,
            sets_before=setting if self._timing.is_first or not within_evaluate else None,
            first=self._timing.is_first,
            waits=self._timing.waits,
            most_rows=self._rows_together(),
            counts_ahead=alone and not (within_evaluate or looks or settings.devices),
            runs_metrics=alone or (self._apart is not None and settings.replicas is None),
        )

    def _validates_alone(self) -> bool:
        """Whether this process alone validates, and only between two epochs."""
        settings, policy = self._settings, self._settings.validation
        inside = policy.every_steps is not None
        return settings.replicas is None and settings.hosts.count == 1 and self._apart is None and not inside

    def _rows_together(self) -> Callable[[Any], int] | None:
        """Returns what says how many rows of arrays may be one batch; None leaves batches alone."""
        settings = self._settings
        as_they_are = self._listened or settings.preprocess or not settings.stock_validation
        as_they_are = as_they_are or any(map(may_set_before_tests, listeners(self._callbacks)))
        return None if as_they_are else functools.partial(rows_together, settings.model)


def _written(prepared: PreparedSet) -> Sequence[CapturedVariable]:
    """Returns the variables to which the pipeline of a validation set writes."""
    if isinstance(prepared.batches, StreamedBatches):
        return prepared.batches.written
    return [variable for variable in _captured(prepared) if variable.written]


def _captured(prepared: PreparedSet) -> Sequence[CapturedVariable]:
    """Returns the variables that the pipeline of a validation set reads or writes."""
    return captured_by(keras.utils.unpack_x_y_sample_weight(prepared.chosen.data)[0])
