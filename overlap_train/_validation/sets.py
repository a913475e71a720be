"""From `fit`'s `validation_data` to the suite that evaluates it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.batches import prepare
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._data.validation_data import ArrayBatches, Batches, make_batches
from overlap_train._inspection.traces import Same, Traces
from overlap_train._keras import data as keras_data
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState
from overlap_train._support import fit_arguments
from overlap_train._support.reasons import Reason
from overlap_train._training.settings import TrainerSettings
from overlap_train._training.splitting import rows_correspond, unknown_layer
from overlap_train._validation.evaluation import SnapshotEvaluator
from overlap_train._validation.live import KerasEvaluation, LiveRunner
from overlap_train._validation.pending import NamedRunner, Runner
from overlap_train._validation.pool import CallersThread, WorkerPool
from overlap_train._validation.runner import ValidationRunner
from overlap_train._validation.suite import ValidationSuite
from overlap_train._validation.validation_sources import ValidationSources, WaitingRunner
from overlap_train._validation.validation_step import (
    Surroundings,
    ValidationStep,
    trace_validation,
    with_present_metrics,
)
from overlap_train.options.validation import ValidationPolicy, ValidationSet
from overlap_train.records import Span

__all__ = ["PreparedSet", "SetRequest", "build_suite", "prepare_sets", "rows_together"]


# Limits of rows, and of rows times weights: beyond them the arithmetic outweighs starting the operations.
_MOST_ROWS, _MOST_PRODUCTS = 1024, 1e7


def rows_together(model: keras.Model, arrays: Any) -> int:
    """Returns how many rows of arrays may be evaluated as one batch; 0 says nothing is known to allow it."""
    methods = (model.test_step, model.compute_loss, model.compute_metrics)
    if keras_training.is_deterministic() or not all(map(keras_models.is_stock_method, methods)):
        return 0
    if unknown_layer(model, also=("BatchNormalization",)) is not None or not keras_metrics.averages_rows(
        model
    ):
        return 0
    if not _each_row_has_its_own(model, arrays) or any(
        map(_needs_the_batch, keras_models.flat_layers(model))
    ):
        return 0
    return min(_MOST_ROWS, int(_MOST_PRODUCTS / max(1, model.count_params())))


def _needs_the_batch(layer: keras.Layer) -> bool:
    """Whether a layer keeps something for the rows of a batch, adds a loss of it, or is better left alone."""
    # A mask divides a batch's loss by what it leaves; a convolution has few weights and much arithmetic.
    kept = getattr(layer, "stateful", False) or getattr(layer, "mask_zero", False)
    return kept or getattr(layer, "activity_regularizer", None) is not None or "Conv" in type(layer).__name__


def _each_row_has_its_own(model: keras.Model, arrays: Any) -> bool:
    """Whether no label or weight is broadcast over the rows of a batch."""
    _, y, sample_weight = keras.utils.unpack_x_y_sample_weight(arrays)
    given = [model.outputs, [y], [] if sample_weight is None else [sample_weight]]
    leaves = [keras.tree.flatten(structure) for structure in given]
    if any(leaf is None for leaf in leaves[1]) or [len(part) for part in leaves[:2]] != [1, 1]:
        return False
    shapes = [tf.TensorShape([None, *leaf.shape[1:]]) for part in leaves for leaf in part]
    labels, outputs = shapes[1], shapes[0]
    weights = shapes[2] if len(shapes) == 3 else None
    classes = keras_metrics.row_loss(model) == "sparse_categorical_crossentropy"
    return len(shapes) <= 3 and rows_correspond(labels, outputs, weights, classes=classes)


@dataclass(frozen=True)
class SetRequest:
    """What is asked of the validation, for all sets."""

    settings: TrainerSettings
    given: ValidationSources
    listened: bool = False  # whether a callback is told of the batches of a validation
    acts: str | None = None  # the name of a callback that may do anything between these batches, or None
    sets_before: str | None = None  # of one that may set the model before them
    first: bool = False  # whether Keras traces the next validation, behind such hooks
    waits: Collection[str] = ()  # the sets whose validation is built when it is first due
    # whether this is a call of `evaluate`, which has reached the model's own already
    within_evaluate: bool = False
    once: bool = False  # whether there is one validation, and no training
    # returns how many rows of nested arrays may be evaluated as one batch; None leaves batches alone
    most_rows: Callable[[Any], int] | None = None
    # whether the training may be given the state that a validation will leave in counters
    counts_ahead: bool = False
    # whether Python that sets metrics back and reads them is run between validations, in Keras's order
    runs_metrics: bool = False

    @property
    def model(self) -> keras.Model:
        """The model to be validated."""
        return self.settings.model

    @property
    def around(self) -> Surroundings:
        """What a step is traced within. Several replicas trace the user's code that reads metrics, too."""
        settings = self.settings
        traces_metrics = settings.replicas is not None or settings.hosts.count > 1
        return Surroundings(settings.in_one_replica, traces_metrics)


@dataclass(frozen=True)
class PreparedSet:
    """A validation set whose step has been traced, before the variables of the training are known."""

    name: str
    chosen: ValidationSet
    batches: Batches | None  # its data; None where the model's own `evaluate` takes it, or it waits
    step: ValidationStep | None  # the traced step; None where nothing is traced
    live: Reason | None  # why it has to be validated live, or None
    waits: bool = False  # whether its data is still to be read

    @property
    def counting(self) -> Reason | None:
        """Why it changes the model, if it has counters; None if it has none."""
        return self.step.counting if self.step is not None and self.step.counters else None


# So many batches of so small a network take less time than to hand them over to workers.
_FEW_BATCHES, _FEW_VARIABLES = 4, 40


def prepare_sets(request: SetRequest, sets: Mapping[str, ValidationSet]) -> list[PreparedSet]:
    """Traces the validation step for each set, and finds out which have to be validated live."""
    _require_devices(request.settings.devices)
    prepared = [_prepared(request, name, chosen) for name, chosen in sets.items()]
    if sum(each.counting is not None for each in prepared) < 2:
        return prepared
    # Each goes on from what the one before has left.
    return [replace(each, live=each.live or each.counting) for each in prepared]


def build_suite(
    request: SetRequest,
    prepared: Sequence[PreparedSet],
    state: ModelState,
    on_span: Callable[[Span], None],
    resources: contextlib.ExitStack,
) -> ValidationSuite:
    """Builds the evaluators of all sets and starts the workers, which `resources` will end."""
    settings, evaluators = request.settings, _evaluators(request, prepared, state)
    pool = _pool(request, prepared, evaluators, resources) if evaluators else None
    cold = settings.devices or not all(evaluator.is_warm for evaluator in evaluators.values())
    present = state.read() if cold else None
    named = []
    for each in prepared:
        runner: Runner
        if each.name in evaluators and pool is not None and each.batches is not None:
            runner = ValidationRunner(
                evaluators[each.name],
                each.batches,
                pool,
                on_span,
                present,
                devices=settings.devices,
                hosts=settings.hosts,
                least=request.given.least(each.name),
                keep_bytes=settings.validation.keep_bytes,
            )
        else:
            runner = _runner_of_its_own(request, each, state, on_span)
        named.append(NamedRunner(each.name, runner, fit_arguments.epoch_selector(each.chosen.freq)))
    beside = pool if not settings.devices and not tf.config.list_logical_devices("GPU") else None
    on_error = settings.validation.on_error
    suite = ValidationSuite(named, on_error=on_error, hosts=settings.hosts, pool=beside)
    resources.callback(suite.close)
    return suite


def _prepared(request: SetRequest, name: str, chosen: ValidationSet) -> PreparedSet:
    model, settings = request.model, request.settings
    replaced = keras_models.is_replaced(model, "evaluate") and not request.within_evaluate
    if replaced or keras_training.has_own_test_function(model):
        own = keras_training.validates_itself(model) or ""
        return PreparedSet(name, chosen, None, None, Reason.of("model-evaluates", own))
    if name in request.waits or (given := request.given.of(name)).waits:
        return PreparedSet(name, chosen, None, None, None, waits=True)
    if given.layout is None:
        request.given.in_time(lambda: given.pipeline.dataset, name)  # which draws what shows its types
    batches = make_batches(
        given,
        steps=request.given.steps(name),
        cache_bytes=settings.validation.keep_bytes,
        preprocess=settings.preprocess,
        most_rows=request.most_rows,
    )
    if keras_models.runs_eagerly(model):
        return PreparedSet(name, chosen, batches, None, Reason.of("model-eager"))
    if settings.shared and (step_of := _own_step(request)) is not None:
        reason = Reason.of("model-evaluates", f"{step_of} may count its replicas or ask the others")
        return PreparedSet(name, chosen, batches, None, reason)
    around = request.around
    # What prepares batches has been traced for these very ones.
    prepared = None if batches.preparation is None else (str(batches.raw_spec), Same(settings.preprocess))
    by_rows = settings.replicas is None and keras_training.traces_first_batch(model)
    step = Traces.of(model).get_step(
        "test",
        keras_training.test_function(model),
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
    step = with_present_metrics(model, step, around)
    live = _must_be_live(request, batches, step)
    given.left_to_keras = live is not None
    return PreparedSet(name, chosen, batches, step, live)


def _own_step(request: SetRequest) -> str | None:
    """Returns the name of a step that is the user's, or None for Keras's, whose losses we make whole."""
    if not request.settings.stock_validation:
        return "the trainer's validation_step"
    owner = keras_models.overriding_class(request.model, "test_step")
    return None if owner is None else f"{owner.__name__}.test_step"


def _must_be_live(request: SetRequest, batches: Batches, step: ValidationStep) -> Reason | None:
    if request.acts is not None:
        return Reason.of("callback-validates", f"{request.acts} between its batches")
    if request.sets_before is not None and (request.first or isinstance(batches, StreamedBatches)):
        return Reason.of("callback-validates", f"{request.sets_before}.on_test_begin")
    if isinstance(batches, StreamedBatches) and batches.reads:
        names = ", ".join(batches.reads[:3])
        cause = f"the pipeline of the validation data reads what no pass holds ({names})"
        return Reason.of("data-follows", cause)
    # Code that makes batches may set what the metrics' code looks at, between two of them.
    by_code = isinstance(batches, StreamedBatches) and batches.runs_python
    if step.by_python and (by_code or not request.runs_metrics):
        return Reason.of("metric-python", type(request.model).__name__)
    if step.live is None and step.counters:
        fixed = not isinstance(batches, StreamedBatches) and not _is_joined(batches)
        return None if request.counts_ahead and fixed else step.counting
    return step.live


def _is_joined(batches: Batches) -> bool:
    return isinstance(batches, ArrayBatches) and batches.is_joined


def _runner_of_its_own(
    request: SetRequest, each: PreparedSet, state: ModelState, on_span: Callable[[Span], None]
) -> Runner:
    """Returns the runner of a set that the workers do not evaluate, or not yet."""
    if each.waits:
        return WaitingRunner(rewindable=not request.given.is_only_once(each.name))
    return _live_runner(request, each, state, on_span)


def _live_runner(
    request: SetRequest, each: PreparedSet, state: ModelState, on_span: Callable[[Span], None]
) -> LiveRunner:
    model = request.model
    streamed = each.batches if isinstance(each.batches, StreamedBatches) else None
    stock = request.settings.preprocess is None and request.settings.stock_validation
    own = each.batches is not None and not stock
    data = functools.partial(request.given.for_keras, each.name)
    evaluate = keras_training.FitEvaluation(model, data, each.chosen.batch_size, each.chosen.steps)
    validate = KerasEvaluation(
        model,
        evaluate,
        test_step=_prepared_step(request) if own else None,
        passed=(lambda made: None) if streamed is None else streamed.passed,
    )
    return LiveRunner(
        validate,
        each.live,
        state,
        on_span,
        rewindable=not request.given.is_only_once(each.name),
        close=evaluate.close,
    )


def _prepared_step(request: SetRequest) -> Callable[[Any], Mapping[str, Any]]:
    """Returns the trainer's validation step for batches that are still to be prepared."""
    function, preprocess = request.settings.validation_function, request.settings.preprocess
    return lambda batch: function(keras_data.without_optionals(prepare(preprocess, batch)))


def _evaluators(
    request: SetRequest, prepared: Sequence[PreparedSet], state: ModelState
) -> dict[str, SnapshotEvaluator]:
    """Returns the evaluators of the sets that workers evaluate."""
    listened, by_device = request.listened, bool(request.settings.devices)
    return {
        each.name: SnapshotEvaluator(
            request.model, state, each.step, each.batches, batch_by_batch=listened, by_device=by_device
        )
        for each in prepared
        if each.live is None and each.step is not None and each.batches is not None
    }


def _pool(
    request: SetRequest,
    prepared: Sequence[PreparedSet],
    evaluators: Mapping[str, SnapshotEvaluator],
    resources: contextlib.ExitStack,
) -> CallersThread | WorkerPool:
    if _is_quick(request, evaluators):
        # The first time a thread prepares the functions while the training is traced.
        warm = all(evaluator.is_warm for evaluator in evaluators.values())
        return CallersThread() if warm else resources.enter_context(WorkerPool(1))
    return resources.enter_context(WorkerPool(_workers(request.settings.validation, prepared, evaluators)))


def _is_quick(request: SetRequest, names: Iterable[str]) -> bool:
    """Whether all that is evaluated is a few batches of a small network, once, without a time limit."""
    apart = request.settings.devices or request.settings.validation.timeout_s is not None
    if not request.once or apart or len(request.model.variables) > _FEW_VARIABLES:
        return False
    counts = [request.given.expected(name) for name in names]
    return all(count is not None and count <= _FEW_BATCHES for count in counts)


def _workers(
    policy: ValidationPolicy, prepared: Sequence[PreparedSet], evaluators: Mapping[str, SnapshotEvaluator]
) -> int:
    """Returns how many threads the sets can keep busy at most."""
    useful = 0
    for each in prepared:
        evaluator = evaluators.get(each.name)
        if evaluator is None or each.batches is None:
            continue
        count = each.batches.num_batches
        most = policy.resolved_workers if count is None else count
        useful += 1 if evaluator.indivisible else max(1, most)
    return min(policy.resolved_workers, useful)


def _require_devices(devices: Sequence[str]) -> None:
    known = [device.name for device in tf.config.list_logical_devices()] if devices else []
    short = [name.split("device:")[-1] for name in known]
    for device in devices:
        spec = tf.DeviceSpec.from_string(device)
        if f"{spec.device_type}:{spec.device_index or 0}" not in short:
            raise ValueError(f"there is no device {device!r}; TensorFlow has {', '.join(short)}")
