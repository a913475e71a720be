"""Wires the rooms together for one `fit` or `evaluate`, from what the trainer was given."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._callbacks.hooks import acts_in_test_batches, wants_test_batches, wants_train_batches
from overlap_train._checkpoint.fingerprints import describe_sets
from overlap_train._checkpoint.resume import CheckpointPolicy, Resumer, fingerprint
from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
from overlap_train._data.preprocessing import Preprocess
from overlap_train._fit.evaluator_host import connect_suite, describe, serve
from overlap_train._fit.followers import agree_to_start, deliver_together, make_resumer
from overlap_train._fit.interrupts import Interrupts
from overlap_train._fit.lag import effective_lag
from overlap_train._fit.parts import Parts
from overlap_train._inspection.traced import CapturedVariable, union
from overlap_train._inspection.traces import Same, Traces, function_key
from overlap_train._keras import evaluation as keras_evaluation
from overlap_train._keras import methods as keras_methods
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState
from overlap_train._training.execution import Task, make_execution
from overlap_train._training.kernels.choice import FastKernels, find_fast_kernels, find_free_kernels
from overlap_train._training.loops import Loop
from overlap_train._training.pace import Pace
from overlap_train._training.replicas.step import SingleReplicaStep, make_step
from overlap_train._training.replicas.strategy import Replicas
from overlap_train._training.step import MetricsReader, Step, StepFunction, require_optimizer
from overlap_train._validation.backlog import Backlog
from overlap_train._validation.functions import FunctionRequest, add_functions
from overlap_train._validation.joining import rows_together
from overlap_train._validation.python_state import PythonState
from overlap_train._validation.sets import SetRequest, build_suite, prepare_sets
from overlap_train._validation.stepwise import StepSchedule, StepValidations, deliver_step_validation
from overlap_train._validation.suite import ValidationSuite
from overlap_train.monitoring.accounts import Accounts
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.functions import EvaluationFunction
from overlap_train.options.validation import ValidationPolicy, ValidationSet
from overlap_train.parallel.hosts import Alone
from overlap_train.records import StepValidation

__all__ = ["Setup", "assemble_fit", "make_callback_list", "make_suite", "serve_fit"]

# What of a `ValidationPolicy` a history may depend on.
_SAID = ("backlog", "on_change", "on_error", "every_steps", "every_seconds", "join_batches")


@dataclass(frozen=True)
class Setup:
    """What a trainer was given.

    Attributes:
        model: compiled.
        train_step: the trainer's.
        validation_step: the trainer's.
        validation: how the validation runs.
        execution: how the steps are executed.
        recorder: keeps the spans of all threads.
        replicas: that share each batch, or None.
        preprocess: prepares a batch, or None.
        in_memory_bytes: arrays up to this size are held as tensors.
        stock: whether `train_step` is the model's own.
        stock_validation: whether `validation_step` is the model's own `test_step`.
    """

    model: keras.Model
    train_step: StepFunction
    validation_step: StepFunction
    validation: ValidationPolicy
    execution: ExecutionPlan
    recorder: SpanRecorder
    replicas: Replicas | None
    preprocess: Preprocess | None
    in_memory_bytes: int
    stock: bool
    stock_validation: bool

    @property
    def hosts(self) -> Alone:
        """The hosts that train together."""
        return self.replicas.hosts if self.replicas is not None else Alone()

    @property
    def shared(self) -> bool:
        """Whether several replicas share each batch."""
        return self.replicas is not None and self.replicas.count > 1

    def holds_in_memory(self, size_bytes: int) -> bool:
        """Whether arrays are to be held as tensors that need so many bytes."""
        loop = self.execution.loop
        return loop == "in_memory" or (loop != "iterator" and size_bytes <= self.in_memory_bytes)


def assemble_fit(
    setup: Setup,
    feed: Feed,
    cursor: Cursor,
    callbacks: keras.callbacks.CallbackList,
    progress: ProgressReporter,
    sets: Mapping[str, ValidationSet],
    functions: Mapping[str, EvaluationFunction],
    policy: CheckpointPolicy | None,
    resources: contextlib.ExitStack,
    *,
    validation_freq: int | Sequence[int],
    initial_epoch: int,
    epochs: int,
    on_step_validation: Callable[[StepValidation], None],
    before: Parts | None = None,
) -> Parts:
    """Builds everything that one `fit` needs, and traces it. On the training thread.

    Args:
        setup: what the trainer was given.
        feed: the training data.
        cursor: the position in it.
        callbacks: the user's, and the history.
        progress: told what is decided.
        sets: the validation sets by name.
        functions: the evaluation functions by name.
        policy: where checkpoints go, or None.
        resources: closes what is opened here.
        validation_freq: as for `fit`, for functions that do not say.
        initial_epoch: where the training begins if it is not resumed.
        epochs: where the training ends.
        on_step_validation: called with the results of validations inside epochs.
        before: the parts of the same fit before a callback had its steps traced anew.
    """
    model, validation, replicas = setup.model, setup.validation, setup.replicas
    require_optimizer(model)
    feed.prepare()
    if replicas is not None:
        plans = {"number of epochs": epochs, "ExecutionPlan": setup.execution}
        agree_to_start(replicas, model, feed, validation, callbacks.callbacks, plans)
    free = _kept_free_kernels(setup)
    step = _make_step(setup, callbacks, feed, free)
    if not keras_models.runs_eagerly(model):
        key = ("step", *_step_key(setup, feed, free), step.jit_compile)
        token = keras_training.begin_training(model)
        traced = Traces.of(model).get_for(
            "train", token, key, feed.element_spec, lambda: step.trace(feed.element_spec)
        )
        reader = None
        if setup.replicas is None:
            reader = Traces.of(model).get(
                "train",
                token,
                "metrics",
                lambda: MetricsReader(
                    model.get_metrics_result, eager=keras_metrics.metrics_by_python(model) is not None
                ),
            )
        step.adopt(traced, reader)
    steps = cursor.steps_per_epoch
    total_steps = None if steps is None else steps * (epochs - initial_epoch)
    loop, pace = _make_loop(setup, feed, step, free, progress, total_steps)
    resources.callback(loop.close)
    if not setup.shared:
        loop.begin_warm_up(feed)  # while the validation is traced
    anew = setup.hosts.count == 1 and not Traces.of(model).holds(
        "test", keras_evaluation.test_function(model)
    )
    state, suite = _make_suite(setup, feed, step, sets, callbacks, resources)
    request = FunctionRequest(
        model, state, feed.element_spec, validation_freq, setup.recorder.add, progress.message
    )
    add_functions(suite, functions, request, resources)
    if validation.sanity_check:
        suite.sanity_check(state.read())
    max_lag, reason = effective_lag(validation, feed, step, suite, callbacks.callbacks)
    shared, delivery = deliver_together(
        setup.hosts,
        model,
        state,
        callbacks,
        on_change=validation.on_change,
        suite=suite,
        live_metrics=lambda: step.metrics.live,
    )
    if reason is not None:
        progress.message(f"validating in step with the training: {reason}")
    backlog = Backlog(validation, suite, max_lag=max_lag)
    resources.callback(backlog.drop)
    return Parts(
        model=model,
        state=state,
        step=step,
        loop=loop,
        cursor=cursor,
        pace=pace,
        suite=suite,
        backlog=backlog,
        stepwise=_step_validations(validation, suite, shared, on_step_validation),
        delivery=delivery,
        callbacks=shared,
        progress=progress,
        recorder=setup.recorder,
        accounts=before.accounts if before else Accounts(),
        interrupts=before.interrupts if before else resources.enter_context(Interrupts()),
        resumer=before.resumer
        if before
        else _make_resumer(setup, policy, feed, {**sets, **functions}, state, progress.message, resources),
        scope=replicas.scope if replicas is not None else contextlib.nullcontext,
        hosts=setup.hosts,
        traced_with=PythonState(model) if anew and suite and before is None else None,
    )


def serve_fit(
    setup: Setup,
    feed: Feed,
    callbacks: keras.callbacks.CallbackList,
    sets: Mapping[str, ValidationSet],
    resources: contextlib.ExitStack,
) -> str:
    """Is the evaluator of a `fit` on other hosts, until it ends.

    Args:
        setup: what the trainer was given.
        feed: the training data, of which only the specification counts here.
        callbacks: the user's, which are not called here, and the history.
        sets: the validation sets by name.
        resources: closes what is opened here.

    Returns:
        How the training ended.
    """
    model, replicas = setup.model, setup.replicas
    assert replicas is not None
    assert replicas.serves is not None
    replicas.build(model, feed.element_spec)
    state, suite = make_suite(setup, (), sets, callbacks, resources)
    listened = _listened_to(callbacks)
    description = describe(replicas.serves, model, sets, setup.validation, batch_by_batch=listened)
    return serve(replicas.serves, description, suite, state, model)


def make_suite(
    setup: Setup,
    captured: Iterable[CapturedVariable],
    sets: Mapping[str, ValidationSet],
    callbacks: keras.callbacks.CallbackList,
    resources: contextlib.ExitStack,
    *,
    within_evaluate: bool = False,
) -> tuple[ModelState, ValidationSuite]:
    """Traces the validation, lists all variables, and starts the workers, which `resources` will end.

    Args:
        setup: what the trainer was given.
        captured: what the training uses.
        sets: by name.
        callbacks: may listen to the batches.
        resources: closes what is opened here.
        within_evaluate: whether this is a call of `evaluate`.
    """
    serves = setup.replicas is not None and setup.replicas.serves is not None
    acting = (c for c in callbacks.callbacks if acts_in_test_batches(c) and not serves)
    request = SetRequest(
        setup.model,
        setup.model.test_step if setup.stock_validation else setup.validation_step,
        _identity(setup, setup.validation_step, stock=setup.stock_validation),
        setup.validation,
        listened=_listened_to(callbacks),
        within_evaluate=within_evaluate,
        acts=next((type(callback).__name__ for callback in acting), None),
        preprocess=setup.preprocess,
        most_rows=_rows_together(setup, callbacks),
        devices=setup.validation.devices or (setup.replicas.spread if setup.replicas is not None else ()),
        hosts=setup.hosts,
        within=setup.replicas.in_one_replica if setup.replicas is not None else lambda function: function,
    )
    prepared = prepare_sets(request, sets)
    used = [variable for each in prepared if each.step is not None for variable in each.step.variables]
    state = ModelState(setup.model, [*captured, *used])
    return state, build_suite(request, prepared, state, setup.recorder.add, resources)


def make_callback_list(
    model: keras.Model,
    callbacks: Any,
    *,
    verbose: int | str,
    epochs: int,
    steps: int | None,
    history: bool = True,
) -> keras.callbacks.CallbackList:
    """Returns the user's callbacks as Keras would call them; a list of the user's own as it is."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=history,
        add_progbar=False,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )


def _rows_together(setup: Setup, callbacks: keras.callbacks.CallbackList) -> Callable[[Any], int] | None:
    """Returns what says how many rows of validation arrays may be one batch; None leaves batches alone."""
    as_they_are = _listened_to(callbacks) or setup.preprocess is not None or not setup.stock_validation
    if as_they_are or not setup.validation.join_batches:
        return None
    return functools.partial(rows_together, setup.model)


def _identity(setup: Setup, function: StepFunction, *, stock: bool) -> Hashable:
    """Returns what tells a step from others: the model's own is the same for every trainer."""
    strategy = None if setup.replicas is None else Same(setup.replicas.strategy)
    return strategy, "stock" if stock else function_key(function)


def _listened_to(callbacks: keras.callbacks.CallbackList) -> bool:
    """Whether a callback listens to the batches of a validation."""
    return any(wants_test_batches(callback) for callback in callbacks.callbacks)


def _make_suite(
    setup: Setup,
    feed: Feed,
    step: Step,
    sets: Mapping[str, ValidationSet],
    callbacks: keras.callbacks.CallbackList,
    resources: contextlib.ExitStack,
) -> tuple[ModelState, ValidationSuite]:
    """Returns the variables of a training and its suite: of this host, or of the cluster's evaluator."""
    captured = [*union([step.traced, feed.preparation]), *feed.captured]
    place = setup.replicas.evaluator if setup.replicas is not None else None
    if place is None:
        return make_suite(setup, captured, sets, callbacks, resources)
    state = ModelState(setup.model, captured)
    return state, connect_suite(
        place,
        setup.hosts,
        state,
        setup.model,
        sets,
        setup.validation,
        resources,
        batch_by_batch=_listened_to(callbacks),
        on_span=setup.recorder.add,
    )


def _make_step(
    setup: Setup, callbacks: keras.callbacks.CallbackList, feed: Feed, free: FastKernels | None
) -> Step:
    model, replicas, metrics = setup.model, setup.replicas, None
    nan_guard = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks.callbacks)
    listened = any(map(wants_train_batches, callbacks.callbacks))
    jit_compile = bool(model.jit_compile) and not keras_models.runs_eagerly(model) and not setup.shared
    if replicas is not None and replicas.hosts.count > 1:
        metrics = functools.partial(replicas.own_metrics, model)
    function = _step_function(setup, feed)
    return Step(
        model,
        _around(setup)(function if free is None else free.around(function, feed.full_batch)),
        jit_compile=jit_compile,
        halt_on_nonfinite=nan_guard,
        listened_to=listened,
        metrics=metrics,
        takes_optimizer=setup.stock and replicas is None and keras_methods.is_stock_method(model.train_step),
    )


def _step_function(setup: Setup, feed: Feed) -> StepFunction:
    """Returns the function of one global batch, without what runs it under a strategy of one replica."""
    if setup.replicas is None or not setup.shared:
        # The model's own, where the trainer's is that: traces outlive the trainer.
        return setup.model.train_step if setup.stock else setup.train_step
    stock = setup.stock and keras_methods.is_stock_method(setup.model.train_step)
    return make_step(setup.model, setup.replicas, setup.train_step, stock=stock, most_rows=feed.full_batch)


def _step_key(setup: Setup, feed: Feed, free: FastKernels | None) -> tuple[Hashable, ...]:
    """Returns what a traced step depends on."""
    shared = feed.full_batch if setup.shared else None
    names = () if free is None else free.names
    return _identity(setup, setup.train_step, stock=setup.stock), shared, names


def _around(setup: Setup) -> Callable[[StepFunction], StepFunction]:
    """Returns what runs a step under a strategy of one replica, if there is one."""
    if setup.replicas is None or setup.shared:
        return lambda function: function
    return functools.partial(SingleReplicaStep, setup.replicas)


def _kept_free_kernels(setup: Setup) -> FastKernels | None:
    """Returns what was chosen for the model's traces: a model that is built by them has more layers then."""
    if keras_models.runs_eagerly(setup.model):
        return None
    key = ("free kernels", setup.execution, setup.stock, setup.shared)
    token = keras_training.begin_training(setup.model)
    return Traces.of(setup.model).get("train", token, key, lambda: _free_kernels(setup))


def _free_kernels(setup: Setup) -> FastKernels | None:
    """Returns the faster operations with which the step is traced at once, or None.

    Unasked these are the ones that are known to be faster; the others are for the planner to try. Keras's
    own remain where the user's code makes the step, where XLA compiles it, and where runs must repeat.
    """
    asked, model = setup.execution.kernels, setup.model
    eager = setup.execution.loop == "eager" or keras_models.runs_eagerly(model)
    if asked == "keras" or setup.shared or eager:
        return None
    if asked == "fast":
        return find_fast_kernels(model, build=True)
    stock = setup.stock and keras_methods.is_stock_method(model.train_step)
    compiled = setup.execution.jit is True or (setup.execution.jit == "auto" and bool(model.jit_compile))
    if not stock or compiled or keras_training.is_deterministic() or tf.config.list_logical_devices("GPU"):
        return None
    return find_free_kernels(model)


def _tried_kernels(setup: Setup, free: FastKernels | None) -> FastKernels | None:
    """Returns the faster operations that the planner may try, or None."""
    if setup.execution.kernels != "auto" or (free is not None and not free.untimed):
        return None
    return find_fast_kernels(setup.model, build=False)


def _make_loop(
    setup: Setup,
    feed: Feed,
    step: Step,
    free: FastKernels | None,
    progress: ProgressReporter,
    total_steps: int | None,
) -> tuple[Loop, Pace]:
    """Returns the loop that the plan asks for, and the pace of its calls."""
    task = Task(
        setup.model,
        feed,
        step,
        _step_function(setup, feed),
        setup.stock,
        total_steps,
        _step_key(setup, feed, free),
        _around(setup),
        shared=setup.shared,
        free=free,
        find_fast=functools.cache(functools.partial(_tried_kernels, setup, free)),
    )
    plan = setup.execution
    if setup.hosts.count > 1 and feed.full_batch is None:
        # A collective operation must have the same shape in each step of a call.
        plan = dataclasses.replace(plan, steps_per_call=1)
    return make_execution(task, plan, progress.message)


def _step_validations(
    policy: ValidationPolicy,
    suite: ValidationSuite,
    callbacks: Any,
    deliver: Callable[[StepValidation], None],
) -> StepValidations | None:
    """Returns what validates inside epochs, if the policy asks for it and there is something to validate."""
    if not suite or (policy.every_steps is None and policy.every_seconds is None):
        return None
    return StepValidations(
        suite,
        StepSchedule(policy.every_steps, policy.every_seconds),
        functools.partial(deliver_step_validation, callbacks.callbacks, deliver),
    )


def _make_resumer(
    setup: Setup,
    policy: CheckpointPolicy | None,
    feed: Feed,
    sets: Mapping[str, ValidationSet | EvaluationFunction],
    state: ModelState,
    say: Callable[[str], None],
    resources: contextlib.ExitStack,
) -> Resumer | None:
    if policy is None:
        return None
    if not feed.rewindable:
        raise ValueError(
            "resume needs data whose position can be found again: arrays, or a tf.data.Dataset without "
            "Python functions and state of its own; this data has one"
        )

    def make() -> Resumer:
        return Resumer(
            policy,
            {**fingerprint(setup.model, feed), "validation": _describe_validation(setup, sets)},
            state,
            num_batches=feed.num_batches,
            settings={f"ValidationPolicy.{name}": repr(getattr(setup.validation, name)) for name in _SAID},
            say=say,
        )

    resumer = make_resumer(setup.hosts, setup.model, make)
    resources.callback(resumer.close)
    return resumer


def _describe_validation(setup: Setup, sets: Mapping[str, ValidationSet | EvaluationFunction]) -> str:
    """Returns what a history's `val_` values come from."""
    functions = [
        f"\n{name}: freq {each.freq}, {getattr(each.function, '__qualname__', type(each.function).__name__)}"
        for name, each in sets.items()
        if isinstance(each, EvaluationFunction)
    ]
    sets = {name: each for name, each in sets.items() if isinstance(each, ValidationSet)}
    step = "stock" if setup.stock_validation else getattr(setup.validation_step, "__qualname__", "custom")
    prepared = "" if setup.preprocess is None else ", prepared by a function"
    return f"{describe_sets(sets)}\nvalidation_step {step}{prepared}{''.join(functions)}"
