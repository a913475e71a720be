"""From `fit`'s `validation_data` to the suite that evaluates it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import keras
import tensorflow as tf

from overlap_train._data.batches import prepare
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._data.validation_data import Batches, make_batches
from overlap_train._inspection.traces import Same, Traces
from overlap_train._keras import data as keras_data
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._keras.evaluation import FitEvaluation
from overlap_train._snapshot import ModelState
from overlap_train._support import fit_arguments
from overlap_train._support.reasons import Reason
from overlap_train._training.settings import TrainerSettings
from overlap_train._validation.evaluation import SnapshotEvaluator
from overlap_train._validation.evaluation_by_batches import BatchEvaluator
from overlap_train._validation.evaluation_by_xla import XlaEvaluator, may_evaluate
from overlap_train._validation.live import KerasEvaluation, LiveRunner, WaitingRunner
from overlap_train._validation.pending import NamedRunner, Runner
from overlap_train._validation.pool import WorkerPool
from overlap_train._validation.runner import ValidationRunner
from overlap_train._validation.suite import ValidationSuite
from overlap_train._validation.validation_sources import ValidationSources
from overlap_train._validation.validation_step import (
    Surroundings,
    ValidationStep,
    trace_validation,
    with_present_metrics,
)
from overlap_train.options.validation import ValidationSet
from overlap_train.records import Span


@dataclass(frozen=True)
class SetRequest:
    """What is asked of the validation, for all sets."""

    settings: TrainerSettings
    sources: ValidationSources
    listened: bool = False  # whether a callback is told of the batches of a validation
    acts: str | None = None  # the name of a callback that may do anything between these batches, or None
    sets_before: str | None = None  # of one that may set the model before them
    sets_python: bool = False  # whether one of these may set what a trace holds; Keras's own set variables
    waits: Collection[str] = ()  # the sets whose validation is built when it is first due
    # whether this is a call of `evaluate`, which has reached the model's own already
    within_evaluate: bool = False
    # whether the training may be given the state that a validation will leave in counters
    counts_ahead: bool = False
    # whether Python that sets metrics back and reads them is run between validations, in Keras's order
    runs_metrics: bool = False
    # how often arrays will be evaluated if XLA compiles the training, or 0
    runs_by_xla: int = 0

    @property
    def model(self) -> keras.Model:
        """The model to be validated."""
        return self.settings.model


@dataclass(frozen=True)
class PreparedSet:
    """A validation set whose step has been traced, before the variables of the training are known."""

    name: str
    validation_set: ValidationSet
    batches: Batches | None = None  # its data; None where the model's own `evaluate` takes it, or it waits
    step: ValidationStep | None = None  # the traced step; None where nothing is traced
    live: Reason | None = None  # why it has to be validated live, or None
    waits: bool = False  # whether its data is still to be read
    keeps_trace: bool = False  # whether Keras runs our trace of the step, and traces none behind hooks


def prepare_sets(request: SetRequest, sets: Mapping[str, ValidationSet]) -> list[PreparedSet]:
    """Traces the validation step for each set, and finds out which have to be validated live."""
    _require_devices(request.settings.devices)
    if len(sets) > 1:  # each goes on from what the one before has left
        request = replace(request, counts_ahead=False)
    return [_prepare(request, name, validation_set) for name, validation_set in sets.items()]


def build_suite(
    request: SetRequest,
    prepared: Sequence[PreparedSet],
    state: ModelState,
    on_span: Callable[[Span], None],
    resources: contextlib.ExitStack,
) -> ValidationSuite:
    """Builds the evaluators of all sets and starts the workers, which `resources` will end."""
    settings, evaluators = request.settings, _evaluators(request, prepared, state)
    is_cold = not all(evaluator.is_warm for evaluator in evaluators.values())
    workers = settings.validation.resolved_workers
    pool = resources.enter_context(WorkerPool(workers)) if evaluators else None
    present = state.read() if settings.devices or is_cold else None

    def runner_of(each: PreparedSet) -> Runner:
        if each.waits:
            return WaitingRunner(rewindable=not request.sources.is_only_once(each.name))
        if pool is None or each.batches is None or each.name not in evaluators:
            return _live_runner(request, each, state, on_span)
        return ValidationRunner(
            evaluators[each.name],
            each.batches,
            pool,
            on_span,
            present,
            devices=settings.devices,
            hosts=settings.hosts,
            least=request.sources.least(each.name),
            keep_bytes=settings.validation.keep_bytes,
        )

    suite = ValidationSuite(
        [
            NamedRunner(each.name, runner_of(each), fit_arguments.epoch_selector(each.validation_set.freq))
            for each in prepared
        ],
        on_error=settings.validation.on_error,
        hosts=settings.hosts,
        pool=None if settings.devices or tf.config.list_logical_devices("GPU") else pool,
    )
    resources.callback(suite.close)
    return suite


def _prepare(request: SetRequest, name: str, validation_set: ValidationSet) -> PreparedSet:
    model, settings = request.model, request.settings
    unprepared = PreparedSet(name, validation_set)
    replaced = keras_models.is_replaced(model, "evaluate") and not request.within_evaluate
    if replaced or keras_training.has_own_test_function(model):
        cause = keras_training.validates_itself(model) or ""
        return replace(unprepared, live=Reason.of("model-evaluates", cause))
    if name in request.waits or (source := request.sources.of(name)).waits:
        return replace(unprepared, waits=True)
    if source.layout is None:
        request.sources.in_time(lambda: source.pipeline.dataset, name)  # which draws what shows its types
    batches = make_batches(
        source,
        steps=request.sources.steps(name),
        cache_bytes=settings.validation.keep_bytes,
        preprocess=settings.preprocess,
    )
    live = _untraced_reason(request)
    if live is not None:
        source.left_to_keras = True
        keeps = live.identifier == "callback-validates" and _is_traced(request)
        step = _trace(request, batches) if keeps else None
        return replace(unprepared, batches=batches, step=step, live=live, keeps_trace=keeps)
    step = _trace(request, batches)
    live = _must_be_live(request, batches, step)
    source.left_to_keras = live is not None
    return PreparedSet(name, validation_set, batches, step, live)


# Under which the traces of a model hold why Keras has traced its validation, and we have not.
_TRACED_BY_KERAS = "traced_by_keras"


def _is_traced(request: SetRequest) -> bool:
    """Whether the model's own step has a trace of ours, made when Keras would have traced it."""
    traces = Traces.of(request.model, "test")
    is_own = request.settings.stock_validation and not request.settings.shared
    return is_own and bool(traces) and _TRACED_BY_KERAS not in traces


def _untraced_reason(request: SetRequest) -> Reason | None:
    """Returns why a validation is live whatever its step does, or None."""
    model, reason = request.model, None
    if keras_models.runs_eagerly(model):
        return Reason.of("model-eager")
    if request.acts is not None:
        reason = Reason.of("callback-validates", f"{request.acts} between its batches")
    elif request.sets_before is not None and request.sets_python and request.settings.hosts.count == 1:
        reason = _set_before(request)
    if request.settings.stock_validation:
        # What hooks set before the first batch is in Keras's own trace, which then stays.
        traces = Traces.of(model, "test")
        if (reason is not None and not traces) or (reason is None and _TRACED_BY_KERAS in traces):
            return traces.get(_TRACED_BY_KERAS, lambda: reason)
    if reason is not None or not request.settings.shared:
        return reason
    # Of Keras's own step we make the losses whole.
    owner = keras_models.overriding_class(request.model, "test_step")
    if not request.settings.stock_validation:
        step = "the trainer's validation_step"
    elif owner is not None:
        step = f"{owner.__name__}.test_step"
    else:
        return None
    return Reason.of("model-evaluates", f"{step} may count its replicas or ask the others")


def _trace(request: SetRequest, batches: Batches) -> ValidationStep:
    """Returns the step for batches of this kind, traced unless there is a trace of it."""
    model, settings = request.model, request.settings
    # Several replicas trace the user's code that reads metrics, too.
    shares_metrics = settings.replicas is not None or settings.hosts.count > 1
    around = Surroundings(settings.in_one_replica, shares_metrics)
    # What prepares batches has been traced for these very ones.
    prepared = None if batches.preparation is None else (str(batches.raw_spec), Same(settings.preprocess))
    by_rows = settings.replicas is None and keras_training.traces_first_batch(model)
    step = Traces.of(model, "test").get_step(
        ("step", settings.validation_identity, prepared),
        batches.element_spec,
        batches.first_rows if by_rows else None,
        functools.partial(
            trace_validation,
            model,
            settings.validation_function,
            preparation=batches.preparation,
            around=around,
        ),
    )
    return with_present_metrics(model, step, around)


def _must_be_live(request: SetRequest, batches: Batches, step: ValidationStep) -> Reason | None:
    streamed = batches if isinstance(batches, StreamedBatches) else None
    if streamed is not None and request.sets_before is not None:
        return _set_before(request)  # several hosts cannot draw it twice, as they evaluate arrays twice
    if streamed is not None and streamed.reads:
        names = ", ".join(streamed.reads[:3])
        cause = f"the pipeline of the validation data reads what no pass holds ({names})"
        return Reason.of("data-follows", cause)
    # Code that makes batches may set what the metrics' code looks at, between two of them.
    by_code = streamed is not None and streamed.runs_python
    if step.by_python and (by_code or not request.runs_metrics):
        return Reason.of("metric-python", type(request.model).__name__)
    if step.live is None and step.counters:
        # Where the data ends may have to be found by a step more (Keras before 3.16), which counts.
        ahead = request.counts_ahead and streamed is None and not batches.finds_end
        return None if ahead else step.counting
    return step.live


def _set_before(request: SetRequest) -> Reason:
    return Reason.of("callback-validates", f"{request.sets_before}.on_test_begin")


def _evaluators(
    request: SetRequest, prepared: Sequence[PreparedSet], state: ModelState
) -> dict[str, SnapshotEvaluator]:
    """Returns what evaluates the sets that need not be live."""
    return {
        each.name: make_evaluator(
            request.model,
            state,
            each.step,
            each.batches,
            by_device=bool(request.settings.devices),
            listened=request.listened,
            runs_by_xla=request.runs_by_xla,
        )
        for each in prepared
        if each.live is None and each.step is not None and each.batches is not None
    }


def make_evaluator(
    model: keras.Model,
    state: ModelState,
    step: ValidationStep,
    batches: Batches,
    *,
    by_device: bool = False,
    listened: bool = False,
    runs_by_xla: int = 0,
) -> SnapshotEvaluator:
    """Returns what evaluates a set: of parts, on devices of their own if `by_device`, or of batches.

    With `listened` a callback is told of each batch.
    """
    arguments = model, state, step, batches
    if listened or isinstance(batches, StreamedBatches):
        return BatchEvaluator(*arguments, by_device=by_device, listened=listened)
    by_xla = runs_by_xla and may_evaluate(model, step, batches, runs_by_xla)
    return XlaEvaluator(*arguments) if by_xla else SnapshotEvaluator(*arguments)


def _live_runner(
    request: SetRequest, each: PreparedSet, state: ModelState, on_span: Callable[[Span], None]
) -> LiveRunner:
    settings = request.settings
    data = functools.partial(request.sources.for_keras, each.name)
    evaluate = FitEvaluation(request.model, data, each.validation_set.batch_size, each.validation_set.steps)
    validate = KerasEvaluation(request.model, evaluate)
    function, preprocess = settings.validation_function, settings.preprocess
    if each.keeps_trace and each.step is not None:
        function = each.step.step
    is_own = each.keeps_trace or preprocess is not None or not settings.stock_validation
    if each.batches is not None and is_own:
        validate.test_step = lambda batch: function(keras_data.without_optionals(prepare(preprocess, batch)))
    if isinstance(each.batches, StreamedBatches):
        validate.on_pass = each.batches.passed
    return LiveRunner(
        validate,
        state,
        on_span,
        each.live,
        rewindable=not request.sources.is_only_once(each.name),
        end=evaluate.close,
    )


def _require_devices(devices: Sequence[str]) -> None:
    names = [device.name for device in tf.config.list_logical_devices()] if devices else []
    present = [name.split("device:")[-1] for name in names]
    for device in devices:
        spec = tf.DeviceSpec.from_string(device)
        if f"{spec.device_type}:{spec.device_index or 0}" not in present:
            raise ValueError(f"there is no device {device!r}; TensorFlow has {', '.join(present)}")
