"""The validation step and what surrounds it, traced once; and why it must not run during the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from overlap_train._inspection.counters import Counter, counters_of
from overlap_train._inspection.traced import CapturedVariable, TracedFunction, trace, union
from overlap_train._inspection.traces import Same, Traces
from overlap_train._keras import data as keras_data
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._support.reasons import Reason
from overlap_train._training.step import CarriedLogs, lists_joined, require_logs


@dataclass(frozen=True)
class Surroundings:
    """How what surrounds a step is traced.

    `within` puts a function into a replica's context. With `traces_metrics` the user's code of metrics is
    traced; else Python runs it.
    """

    within: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
    traces_metrics: bool = False


@dataclass(frozen=True, eq=False)
class ValidationStep:
    """One validation step of a model for batches of one kind, as traced functions."""

    step: TracedFunction
    reset: TracedFunction | None  # sets the metrics back, as before the first batch; None if Python does so
    result: TracedFunction | None  # computes the metrics; None if Python does so
    preparation: TracedFunction | None  # makes a batch of what the data holds; None if it is a batch already
    logs: CarriedLogs
    # whether these count, of the last batch, and not the metrics: Keras takes the metrics where both have
    # the same names
    own_logs: bool
    # why the step can only run on the model's own variables, in step with the training; or None
    live: Reason | None
    # the metrics of the model and the plain settings of each, on which all but the step itself depends
    metrics: tuple[Same, ...] = ()
    settings: Mapping[Same, Mapping[str, Any]] = field(default_factory=dict)
    methods: Sequence[Any] = ()  # of the user's that set these metrics back and read them
    by_python: bool = False  # whether Python sets the metrics back and reads them, each time
    # what the step does nothing to but add to, such as the states of seed generators
    counters: tuple[Counter, ...] = ()

    @property
    def counting(self) -> Reason:
        """Why the step changes the model, if the counters may not be counted ahead."""
        return _changing([counter.variable.name for counter in self.counters])

    def changed(self, model: keras.Model) -> str | None:
        """Returns what is set otherwise than when it was traced, in words; None if nothing is."""
        listed = keras_models.overriding_class(model, "metrics")
        if listed is not None and self.metrics != tuple(map(Same, model.metrics)):
            return f"{listed.__name__}.metrics"
        if self.methods != keras_metrics.custom_methods(model):
            return keras_metrics.REPLACED
        before = [metric.thing for metric in self.metrics]
        if not self.by_python:  # or the user's code may name other metrics each time
            name = keras_metrics.changed_metrics(model, before, self.step.outputs, own_logs=self.own_logs)
            if name is not None:
                return name
        for metric in keras_metrics.metric_leaves(model):
            if Same(metric) not in self.settings:
                continue
            traced, present = self.settings[Same(metric)], keras_metrics.settings_of(metric)
            names = (name for name in {**traced, **present} if traced.get(name) != present.get(name))
            for name in names:
                return f"{type(metric).__name__}.{name.lstrip('_')}"
        return None

    def is_present(self, model: keras.Model) -> bool:
        """Whether it was traced with the metrics that the model has now, set as they are."""
        return self.metrics == tuple(map(Same, model.metrics)) and self.changed(model) is None

    @property
    def variables(self) -> list[CapturedVariable]:
        """All variables that a validation reads or writes."""
        return union([self.step, self.reset, self.result, self.preparation])


def trace_validation(
    model: keras.Model,
    function: Callable[[Any], Mapping[str, Any]],
    element_spec: Any,
    rows: int | None = None,
    *,
    preparation: TracedFunction | None = None,
    around: Surroundings = Surroundings(),
) -> ValidationStep:
    """Traces the validation step of a compiled model, which builds what is not built yet."""
    step = TracedFunction(
        around.within(lambda batch: lists_joined(function(keras_data.without_optionals(batch)))),
        element_spec,
        rows=rows,
        harmless=lambda: keras_metrics.stock_metric_handles(model),
    )
    require_logs("validation_step", step.outputs)
    return _around(model, step, preparation, around)


def with_present_metrics(
    model: keras.Model,
    step: ValidationStep,
    around: Surroundings,
) -> ValidationStep:
    """Returns a step of before with what surrounds it as Keras finds it now.

    A metric may have been added, or given another value to compute with. Keras keeps the trace of
    `test_step`, which knows nothing of that, but asks the model each time for its metrics to set them back
    and to read them.
    """
    if step.is_present(model):
        return step
    key = ("around", Same(step.step), step.preparation and Same(step.preparation))
    steps: list[ValidationStep] = Traces.of(model, "test").get(key, list)
    for other in steps:
        if other.is_present(model):
            return other
    del steps[:-1]  # a program that sets a metric anew in each epoch leaves no more behind
    steps.append(_around(model, step.step, step.preparation, around))
    return steps[-1]


def _around(
    model: keras.Model,
    step: TracedFunction,
    preparation: TracedFunction | None,
    around: Surroundings,
) -> ValidationStep:
    """Traces what surrounds a step."""
    reset = result = None
    if around.traces_metrics or not keras_metrics.has_custom_metrics(model):
        result = trace(around.within(model.get_metrics_result))
    if result is not None:
        reset = TracedFunction(around.within(model.reset_metrics))
    by_python = result is None
    metric_handles = {
        id(handle) for v in model.metrics_variables for handle in keras_models.variable_handles(v)
    }
    # What a callback sets of metrics is not noticed: each epoch sets them back.
    elsewhere = metric_handles | {id(v.handle) for v in union([reset, result, preparation])}
    integers = [v for v in step.written if v.dtype.is_integer and id(v.handle) not in elsewhere]
    counters = tuple(counters_of(step, integers)) if integers else ()
    may_write = metric_handles | {id(counter.variable.handle) for counter in counters}
    functions = [step, reset, result, preparation]
    return ValidationStep(
        step,
        reset,
        result,
        preparation,
        CarriedLogs(step.outputs),
        own_logs=by_python or set(step.outputs) != set(model.get_metrics_result()),
        live=_effect(functions) or _change(model, functions, may_write) or _lasting(step, reset, counters),
        metrics=tuple(map(Same, model.metrics)),
        settings={
            Same(metric): keras_metrics.settings_of(metric)
            for metric in keras_metrics.metric_leaves(model)
            if not by_python or keras_models.is_stock_method(type(metric))  # what Python runs may count
        },
        methods=keras_metrics.custom_methods(model),
        by_python=by_python,
        counters=counters,
    )


def _effect(functions: Sequence[TracedFunction | None]) -> Reason | None:
    """Returns what a validation does besides computing, if that must not run on private variables."""
    effects = (effect for function in functions if function is not None for effect in function.effects)
    for effect in effects:
        return Reason.of("step-stateful", f"the validation {effect.done}", effect.remedy)
    return None


def _change(
    model: keras.Model, functions: Sequence[TracedFunction | None], may_write: set[int]
) -> Reason | None:
    """Returns which variables a validation changes that are neither metrics nor counters, or None."""
    changes = [v for v in union(functions) if v.written and id(v.handle) not in may_write]
    if not changes:
        return None
    if set(keras_metrics.unlisted_loss_handles(model)).issuperset(id(v.handle) for v in changes):
        cause = f"{type(model).__name__}.metrics leaves out Keras's own loss tracker"
        return Reason.of("metric-state", cause)
    return _changing([variable.name for variable in changes])


def _lasting(
    step: TracedFunction, reset: TracedFunction | None, counters: Sequence[Counter]
) -> Reason | None:
    """Returns which state of the metrics goes on from one validation to the next, or None."""
    if reset is None:  # which Python does
        return None
    set_back = {id(variable.handle) for variable in reset.variables if variable.only_set}
    set_back |= {id(counter.variable.handle) for counter in counters}
    names = [variable.name for variable in step.written if id(variable.handle) not in set_back]
    cause = f"reset_state does not set back {', '.join(names[:3])}"
    return Reason.of("metric-state", cause) if names else None


def _changing(names: Sequence[str]) -> Reason:
    return Reason.of("validation-writes", ", ".join(names[:3]))
