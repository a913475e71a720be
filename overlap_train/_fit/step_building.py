"""The training step of a `fit`, traced once for its model, and the loop around it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence

import keras
import tensorflow as tf

from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._fit.request import FitRequest
from overlap_train._inspection.graph import sends_any_shape
from overlap_train._inspection.traces import Same, Traces
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import optimizers as keras_optimizers
from overlap_train._keras import training as keras_training
from overlap_train._training.execution import Task, make_execution
from overlap_train._training.kernels import MANY_PARTS, FastKernels, find_kernels, steps_that_pay_timing
from overlap_train._training.loops import Loop, Pace
from overlap_train._training.parts import leaves_of
from overlap_train._training.replicas import make_step
from overlap_train._training.step import MetricsReader, Step, StepFunction
from overlap_train.options.threads import ways_are_fixed

# A run of fewer steps is over before faster operations gain anything that one would notice.
_LONG_RUN = 100


class StepBuilder:
    """Builds the step and the loop of one `fit`."""

    def __init__(
        self,
        request: FitRequest,
        callbacks: Sequence[keras.callbacks.Callback],
        total_steps: int | None = None,  # of the whole run, if that does not end with the data
    ) -> None:
        settings = request.settings
        self._settings, self._model, self._feed = settings, request.model, request.feed
        self._is_stored = request.checkpoints is not None
        self._callbacks = callbacks
        self._total_steps = total_steps
        self._kernels = self._cached_kernels()

    def build_step(self) -> Step:
        """Returns the step; its trace is that of the model, if there is one already."""
        settings, model, feed = self._settings, self._model, self._feed
        step = self._make_step()
        if keras_models.runs_eagerly(model):
            if self._is_stored:  # and only a trace tells which variables the step uses
                raise ValueError(
                    f"resume is for compiled training steps, and {model.name!r} runs eagerly; compile it "
                    "without run_eagerly=True, or leave resume out"
                )
            return step
        traces = Traces.of(model, "train")
        key = ("step", *self._step_key(), step.jit_compile)
        by_rows = settings.replicas is None and keras_training.traces_first_batch(model)
        rows = feed.first_rows if by_rows else None
        trace = traces.get_step(key, feed.element_spec, rows, step.trace)
        reader = None
        if settings.replicas is None:
            methods = keras_metrics.custom_methods(model)
            key = ("metrics", *map(Same, [*model.metrics, *methods]))
            reader = traces.get(key, self._make_reader)
        step.adopt(trace, reader)
        return step

    def build_loop(self, step: Step, say: Callable[[str], None]) -> tuple[Loop, Pace]:
        """Returns the loop that the plan asks for, and the pace of its calls."""
        settings = self._settings
        function, key = self._step_function(), self._step_key()
        task = Task(settings, self._feed, step, function, self._total_steps, key, self._kernels)
        plan = settings.execution
        if settings.shared and self._collectives_vary(step):
            # A collective operation must have the same shape in each step of a call.
            plan = dataclasses.replace(plan, steps_per_call=1)
        return make_execution(task, plan, say)

    def _collectives_vary(self, step: Step) -> bool:
        """Whether what the replicas send each other may differ in shape from batch to batch."""
        rows = leaves_of(self._feed.element_spec)[0].shape[:1]
        alike = rows.is_fully_defined() and not self._settings.own_rows
        return step.traced is not None and not alike and sends_any_shape(step.traced.graph)

    def _make_step(self) -> Step:
        settings, model = self._settings, self._model
        nan_guard = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in self._callbacks)
        metrics = None
        if settings.replicas is not None and settings.hosts.count > 1:
            metrics = functools.partial(settings.replicas.own_metrics, model)
        function = self._step_function()
        if self._kernels is not None:
            function = self._kernels.around(function, self._feed.full_batch)
        return Step(
            model,
            settings.around()(function),
            jit_compile=bool(model.jit_compile)
            and not keras_models.runs_eagerly(model)
            and not settings.shared,
            halt_on_nonfinite=nan_guard,
            listened_to=any(map(wants_train_batches, self._callbacks)),
            metrics=metrics,
            stock=settings.stock_step and settings.replicas is None,
        )

    def _make_reader(self) -> MetricsReader:
        model = self._model
        by_python = keras_metrics.has_custom_metrics(model)
        # Keras asks anew for each epoch which metrics there are, and how they are set.
        has_own_list = keras_models.overriding_class(model, "metrics") is not None
        eager = by_python or has_own_list or keras_metrics.reads_settings(model)
        return MetricsReader(model.get_metrics_result, eager=eager, by_python=by_python)

    def _step_function(self) -> StepFunction:
        """Returns the function of one global batch, without what runs it under a strategy of one replica."""
        settings = self._settings
        if settings.replicas is None or not settings.shared:
            # The model's own, where the trainer's is that: traces outlive the trainer.
            return self._model.train_step if settings.stock else settings.train_step
        return make_step(
            self._model,
            settings.replicas,
            settings.train_step,
            stock=settings.stock_step,
            most_rows=settings.replicas.most_rows,
        )

    def _step_key(self) -> tuple[Hashable, ...]:
        """Returns what a traced step depends on."""
        settings, kernels = self._settings, self._kernels
        shared = settings.replicas.most_rows if settings.replicas is not None and settings.shared else None
        return settings.train_identity, shared, kernels and (kernels.names, kernels.times)

    def _cached_kernels(self) -> FastKernels | None:
        """Returns the choice for the model's earlier traces: a model that they have built has more layers."""
        settings, model, steps = self._settings, self._model, self._total_steps or 0
        if keras_models.runs_eagerly(model):
            return None
        long = steps >= _LONG_RUN
        times = long and steps >= steps_that_pay_timing(model)
        key = ("kernels", settings.execution, settings.stock, settings.shared, long, times)
        find = functools.partial(self._find_kernels, long=long, times=times)
        return Traces.of(model, "train").get(key, find)

    def _find_kernels(self, *, long: bool, times: bool) -> FastKernels | None:
        """Returns the faster operations with which the step is traced; None keeps Keras's own."""
        settings, model, plan = self._settings, self._model, self._settings.execution
        if plan.kernels == "keras" or settings.shared:
            return None
        if plan.kernels == "fast":
            return find_kernels(model, build=True)
        compiled = plan.jit is True or (plan.jit == "auto" and bool(model.jit_compile))
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        if not settings.stock_step or compiled or on_gpu:
            return None
        if ways_are_fixed():
            return find_kernels(model)  # convolutions by their shapes, untimed
        if keras_training.is_deterministic():
            return None  # the user wants Keras's bits
        if not long and len(model.trainable_variables) + len(keras_models.flat_layers(model)) < MANY_PARTS:
            return None
        return find_kernels(model, long=long, times=times)


def look_only(request: FitRequest, resources: contextlib.ExitStack) -> None:
    """Has everything that is traced and drawn from now on forgotten when `resources` are closed."""
    resources.enter_context(request.feed.inspection())
    # What is traced before the first hooks may not be what the fit has to trace after them.
    resources.enter_context(Traces.set_aside(request.model))
    # A fit builds the optimizer from what its own first step has built, not from less.
    resources.enter_context(keras_optimizers.unbuilt_again(request.model))
