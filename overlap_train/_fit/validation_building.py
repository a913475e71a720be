"""The validation of a `fit` or an `evaluate`: traced, with its workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._callbacks.hooks import (
    EVERY_HOOK,
    TEST_BATCH_HOOKS,
    TRAIN_BATCH_HOOKS,
    acts_in,
    overrides,
    runs_own_code,
    wants_test_batches,
)
from overlap_train._data.pipeline import captured_by
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._fit.draws import is_drawn_in_order, reads
from overlap_train._fit.elsewhere import ElsewhereSuite, Evaluator, refuse_listeners
from overlap_train._fit.request import FitRequest
from overlap_train._inspection.traced import CapturedVariable, union
from overlap_train._inspection.traces import Traces
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState
from overlap_train._support.fit_arguments import epoch_selector
from overlap_train._training.settings import TrainerSettings
from overlap_train._training.step import Step
from overlap_train._validation.functions import FunctionRequest, add_functions
from overlap_train._validation.sets import PreparedSet, SetRequest, build_suite, prepare_sets
from overlap_train._validation.suite import ValidationSuite
from overlap_train._validation.validation_sources import ValidationSources
from overlap_train.options.validation import ValidationSet


def make_sources(
    settings: TrainerSettings, sets: Mapping[str, ValidationSet], **options: Any
) -> ValidationSources:
    """Returns the data of validation sets; each of the workers' devices gets its own copy of batches."""
    device = "CPU:0" if settings.devices else None
    return ValidationSources(settings.model, sets, device=device, **options)


@dataclass(frozen=True)
class TraceTiming:
    """When the validation is traced.

    The sets in `waits` are left until they are due. A validation that `is_provisional` is built anew when it
    is first due.
    """

    waits: frozenset[str] = frozenset()
    is_provisional: bool = False


AT_ONCE = TraceTiming()

# The hooks after which Keras traces the first validation.
_BEFORE_TRACE = ("on_test_begin", "on_test_batch_begin")


class FitValidation:
    """The validation of one `fit`, however often it is built: its data, and when it is traced.

    Keras traces a validation when it first makes one, and sees what callbacks and data have set until then.
    Where only Keras's own code runs before that, it may be traced at once. `sources` is the data of all sets;
    `evaluator` validates instead of this process, if the policy names one. On the training thread.
    """

    def __init__(
        self,
        request: FitRequest,
        callbacks: keras.callbacks.CallbackList,
        resources: contextlib.ExitStack,
        *,
        looks_only: bool = False,
    ) -> None:
        settings = request.settings
        self._request = request
        self._callbacks = callbacks
        self._waits = request.reads_when_due and not looks_only
        self.sources = make_sources(
            settings,
            request.sets,
            now=False,
            python_now=not self._waits,
            written=request.feed.files,
            rewritten=lambda: request.feed.runs_python or self._runs_own_code(EVERY_HOOK),
            timeout_s=settings.validation.timeout_s,
        )
        resources.callback(self.sources.close)
        self.evaluator: Evaluator | None = None
        if request.elsewhere:
            self.evaluator = resources.enter_context(Evaluator(request, looks_only=looks_only))
        self._test_function: Any = None
        self._may_differ = False

    def timing(self) -> TraceTiming:
        """Returns when to trace what is built now; the sets that have been due are `sources.begun`."""
        request, begun = self._request, self.sources.begun
        if not request.sets:
            return AT_ONCE
        function = keras_training.test_function(request.model)
        if function is not self._test_function:  # with another one Keras traces anew
            self._test_function = function
            begun.clear()
        if not begun:
            self._may_differ = self._may_be_set_before()
        if not self._may_differ:
            return AT_ONCE
        waits = frozenset(request.sets).difference(begun) if self._waits else frozenset()
        return TraceTiming(waits, is_provisional=not (begun or request.reads_when_due))

    def _may_be_set_before(self) -> bool:
        """Whether code of the user's runs before the first validation."""
        settings, request, model = self._request.settings, self._request, self._request.model
        if settings.hosts.count > 1 or request.validates_inside:
            return False
        if Traces.of(model, "test"):
            return False
        hooks = [*TRAIN_BATCH_HOOKS, *_BEFORE_TRACE]
        at_first = all(epoch_selector(each.freq)(request.initial_epoch) for each in request.sets.values())
        if not at_first or request.checkpoints is not None:
            hooks += ["on_train_begin", "on_epoch_begin", "on_epoch_end"]
        return request.feed.runs_python or self._runs_own_code(hooks)

    def _runs_own_code(self, hooks: Sequence[str]) -> bool:
        return any(runs_own_code(callback, hooks) for callback in self._callbacks.callbacks)

    def build(
        self,
        step: Step,
        resources: contextlib.ExitStack,
        timing: TraceTiming = AT_ONCE,
        *,
        by_xla: bool = False,
    ) -> tuple[ModelState, ValidationSuite]:
        """Returns the variables of the training and what validates them; `resources` will end its workers.

        `by_xla` says that XLA compiles the training.
        """
        request, settings, feed = self._request, self._request.settings, self._request.feed
        once = request.epochs - request.initial_epoch <= 1 and not request.validates_inside
        written = step.traced.written if step.traced is not None else ()

        def is_in_order(validation_set: ValidationSet) -> bool:
            ahead = settings.validation.max_lag > 0 and not once and not validation_set.concurrent
            return ahead and is_drawn_in_order(feed, validation_set.data, settings.model, written)

        captured = [*union([step.traced, feed.preparation]), *feed.captured]
        if (waits := settings.hosts.waits) is not None:
            clocks = set(map(id, waits.handles))
            captured = [variable for variable in captured if id(variable.handle) not in clocks]
        state, suite, _ = build_validation(
            settings,
            request.sets,
            self._callbacks,
            self.sources,
            resources,
            timing=timing,
            captured=captured,
            drawn=feed.written_variables,
            is_in_order=is_in_order,
            runs_by_xla=request.epochs - request.initial_epoch if by_xla else 0,
        )
        if self.evaluator is not None:
            settings.hosts.all_do(lambda: refuse_listeners(self._callbacks.callbacks))
            self.evaluator.take(state)
            return state, ElsewhereSuite(self.evaluator, request)
        freq, report = request.validation_freq, settings.recorder.add
        # The suite is built anew before functions are called that are not due before the sets that wait.
        waiting = [request.sets[name].freq for name in suite.waiting]
        functions = {
            name: each
            for name, each in request.functions.items()
            if 1 not in waiting and (freq if each.freq is None else each.freq) not in waiting
        }
        if functions:
            spec, hosts = feed.element_spec, settings.hosts
            needs = FunctionRequest(request.model, state, spec, freq, report, hosts)
            add_functions(suite, functions, needs, resources)
        return state, suite


def build_validation(
    settings: TrainerSettings,
    sets: Mapping[str, ValidationSet],
    callbacks: keras.callbacks.CallbackList,
    sources: ValidationSources,
    resources: contextlib.ExitStack,
    *,
    captured: Iterable[CapturedVariable] = (),
    drawn: Iterable[CapturedVariable] = (),
    within_evaluate: bool = False,
    is_in_order: Callable[[ValidationSet], bool] = lambda validation_set: False,
    **circumstances: Any,
) -> tuple[ModelState, ValidationSuite, Any]:
    """Traces the validation of a `fit` or `evaluate`, lists all variables, and starts the workers.

    To `drawn` the pipeline of the training data writes; that of a validation set may do so as well, in step
    with the training. The `circumstances` are those of `_set_request`. The third value is the spec of a batch
    of the first set, or None if that is not looked at.
    """
    request = _set_request(settings, sources, callbacks, within_evaluate=within_evaluate, **circumstances)
    prepared = prepare_sets(request, sets)
    for each in prepared:
        if isinstance(each.batches, StreamedBatches):
            each.batches.in_order = is_in_order(each.validation_set)
    batch_spec = next((each.batches.element_spec for each in prepared if each.batches is not None), None)
    of_steps = [variable for each in prepared if each.step is not None for variable in each.step.variables]
    moving = [variable for each in prepared for variable in _written_variables(each)]
    settable = [variable for each in prepared for variable in _captured(each)]  # by callbacks
    state = ModelState(
        settings.model,
        [*captured, *of_steps, *moving, *settable],
        drawn=[*drawn, *moving],
        trains=not within_evaluate,
    )
    return state, build_suite(request, prepared, state, settings.recorder.add, resources), batch_spec


def _set_request(
    settings: TrainerSettings,
    sources: ValidationSources,
    callbacks: keras.callbacks.CallbackList,
    *,
    within_evaluate: bool,
    apart: bool = False,
    timing: TraceTiming = AT_ONCE,
    runs_by_xla: int = 0,
) -> SetRequest:
    """Returns what the callbacks ask of a validation; `apart` says that it is for a training elsewhere."""
    listening = callbacks.callbacks
    listened = any(map(wants_test_batches, listening))
    acting = next((type(c).__name__ for c in listening if acts_in(c, TEST_BATCH_HOOKS)), None)
    custom = [c for c in listening if not keras_models.is_stock_method(type(c))]
    noting = [c for c in custom if overrides(c, "on_test_begin")]
    setting = [c for c in listening if acts_in(c, _BEFORE_TRACE[:1])]
    setting += [c for c in noting if c not in setting and reads(settings.model, c)]
    looks = listened or bool(noting)
    # Whether this process alone validates, and only between two epochs.
    alone = settings.replicas is None and not apart and settings.validation.every_steps is None
    alone = alone and acting is None and not setting
    return SetRequest(
        settings,
        sources,
        listened=listened,
        within_evaluate=within_evaluate,
        acts=acting,
        sets_before=next((type(c).__name__ for c in setting), None),
        sets_python=any(c in setting or acts_in(c, TEST_BATCH_HOOKS) for c in custom),
        waits=timing.waits,
        counts_ahead=alone and not (within_evaluate or looks or settings.devices),
        runs_metrics=alone or (apart and settings.replicas is None),
        runs_by_xla=runs_by_xla,
    )


def _written_variables(prepared: PreparedSet) -> Sequence[CapturedVariable]:
    """Returns the variables to which the pipeline of a validation set writes."""
    if isinstance(prepared.batches, StreamedBatches):
        return prepared.batches.written
    return [variable for variable in _captured(prepared) if variable.written]


def _captured(prepared: PreparedSet) -> Sequence[CapturedVariable]:
    """Returns the variables that the pipeline of a validation set reads or writes."""
    data = keras.utils.unpack_x_y_sample_weight(prepared.validation_set.data)[0]
    return captured_by(data) if isinstance(data, tf.data.Dataset) else []
