"""The validation step and what surrounds it, traced once; and why it must not run during the training.

Tracing computes with numbers, texts and flags once and for all. Keras traces a validation when it first
validates; one that is set after our trace and before that changes what Keras sees. `TracedWith` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._inspection.metric_code import NO_CONSTANTS, Constants, constants_of
from overlap_train._inspection.reads import Reading, change_between, try_reading
from overlap_train._inspection.traced import (
    CapturedVariable,
    Counter,
    TracedFunction,
    counters_of,
    trace,
    union,
)
from overlap_train._inspection.traces import Same, Traces
from overlap_train._keras import data as keras_data
from overlap_train._keras import data_mistakes
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._support.reasons import Reason
from overlap_train._training.step import CarriedLogs, lists_joined, require_logs

__all__ = ["TracedWith", "ValidationStep", "trace_validation"]


_SETTINGS: tuple[Callable[[], Any], ...] = (
    keras.config.dtype_policy,
    keras.config.epsilon,
    keras.config.floatx,
    keras.config.image_data_format,
)


class TracedWith:
    """What the user's code reads in a validation, and attributes of the model's parts, as they are now."""

    def __init__(self, model: keras.Model, function: Callable[..., Any]) -> None:
        self.validated = False  # whether a validation has begun since, with which Keras would have traced
        self._model = model
        self._function = function
        self._settings = _settings()
        self._reading = self._read()

    def changed(self) -> str | None:
        """Returns what has been set to another value since, such as "Scaled.scale"; None if nothing was."""
        if keras_models.runs_eagerly(self._model):  # nothing is traced
            return None
        changed = [name for name, value in _settings().items() if value != self._settings[name]]
        if changed:
            return changed[0]
        return change_between(self._reading, self._read())

    def forget_validation(self) -> None:
        """Drops what has been traced for the validation of the model."""
        Traces.of(self._model).forget("test")

    def _read(self) -> Reading | None:
        model = self._model
        parts = [model, *keras_metrics.metric_leaves(model)]
        return try_reading([*parts, *keras.tree.flatten(model.loss), self._function])


def _settings() -> dict[str, str]:
    return {f"keras.config.{setting.__name__}": repr(setting()) for setting in _SETTINGS}


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
    metrics: tuple[Same, ...] = ()  # those of the model, which all but the step itself depends on
    # what `reset` and `result` have computed with of Python, and hold until it is set
    constants: Constants = NO_CONSTANTS
    # what the step does nothing to but add to, such as the states of seed generators
    counters: tuple[Counter, ...] = ()

    @property
    def counting(self) -> Reason:
        """Why the step changes the model, if the counters may not be counted ahead."""
        return _changing([counter.variable.name for counter in self.counters])

    @property
    def variables(self) -> list[CapturedVariable]:
        """All variables that a validation reads or writes."""
        return union([self.step, self.reset, self.result, self.preparation])


def trace_validation(
    model: keras.Model,
    function: Callable[[Any], Mapping[str, Any]],
    element_spec: Any,
    preparation: TracedFunction | None = None,
    *,
    within: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
) -> ValidationStep:
    """Traces the validation step of a compiled model, which builds what is not built yet."""
    with data_mistakes.Noted(model, lambda: element_spec, "validation"):
        step = TracedFunction(
            within(lambda batch: lists_joined(function(keras_data.without_optionals(batch)))),
            element_spec,
            harmless=lambda: keras_metrics.stock_metric_handles(model),
        )
    require_logs("validation_step", step.outputs)
    return _around(model, step, preparation, within, *constants_of(model))


def with_present_metrics(
    model: keras.Model,
    step: ValidationStep,
    *,
    within: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> ValidationStep:
    """Returns a step of before with what surrounds it as Keras finds it now.

    A metric may have been added, or given another value to compute with. Keras keeps the trace of
    `test_step`, which knows nothing of that, but asks the model each time for its metrics to set them back
    and to read them.
    """
    present = tuple(map(Same, model.metrics))
    place = step.constants.changed()
    if step.metrics == present and place is None:
        return step
    key = (Same(step.step), step.preparation and Same(step.preparation), present)
    traces, token = Traces.of(model), keras_training.test_function(model)
    known: list[ValidationStep] = traces.get("test", token, ("around", *key), list)
    for other in known:
        if other.constants.changed() is None:
            return other
    constants, by_python = constants_of(model)
    if len(known) >= _MOST_CONSTANTS and by_python is None and place is not None:
        # It would be traced again and again; operation by operation is quicker then.
        cause = f"{place} is set again and again"
        return _around(model, step.step, step.preparation, within, NO_CONSTANTS, cause)
    del known[_MOST_CONSTANTS:]
    known.append(_around(model, step.step, step.preparation, within, constants, by_python))
    return known[-1]


# So many sets of values are traced.
_MOST_CONSTANTS = 2


def _around(
    model: keras.Model,
    step: TracedFunction,
    preparation: TracedFunction | None,
    within: Callable[[Callable[..., Any]], Callable[..., Any]],
    constants: Constants,
    by_python: str | None,
) -> ValidationStep:
    logs, own_logs = CarriedLogs(step.outputs), set(step.outputs) != set(model.get_metrics_result())
    metrics = tuple(map(Same, model.metrics))
    if by_python is not None:
        reason = Reason.of("metric-python", by_python)
        return ValidationStep(step, None, None, preparation, logs, own_logs, reason, metrics)
    reset = TracedFunction(within(model.reset_metrics))
    result = trace(within(model.get_metrics_result))
    elsewhere = {id(variable.handle) for variable in union([reset, result, preparation])}
    # What a callback sets of metrics is not noticed: each epoch sets them back.
    elsewhere |= {id(handle) for v in model.metrics_variables for handle in keras_models.variable_handles(v)}
    counters = tuple(each for each in counters_of(step) if id(each.variable.handle) not in elsewhere)
    live = _must_be_live(model, step, reset, result, preparation, counters)
    found = (preparation, logs, own_logs, live, metrics, constants, counters)
    return ValidationStep(step, reset, result, *found)


def _must_be_live(
    model: keras.Model,
    step: TracedFunction,
    reset: TracedFunction,
    result: TracedFunction | None,
    preparation: TracedFunction | None,
    counters: tuple[Counter, ...],
) -> Reason | None:
    """Returns why a validation cannot be made on private variables, to the same result, or None."""
    functions = [step, reset, result, preparation]
    for function in functions:
        for effect in function.effects if function is not None else ():
            return Reason.of("step-stateful", f"the validation {effect.done}", effect.remedy)
    own = {id(handle) for v in model.metrics_variables for handle in keras_models.variable_handles(v)}
    own |= {id(counter.variable.handle) for counter in counters}
    written = [v for v in union(functions) if v.written and id(v.handle) not in own]
    changed = [v.name for v in written]
    if changed and set(keras_metrics.unlisted_loss_handles(model)).issuperset(id(v.handle) for v in written):
        cause = f"{type(model).__name__}.metrics leaves out Keras's own loss tracker"
        return Reason.of("metric-state", cause)
    if changed:
        return _changing(changed)
    if result is None:
        return Reason.of("metric-python", "their results cannot be computed in a compiled function")
    set_back = {id(variable.handle) for variable in reset.variables if variable.only_set}
    set_back |= {id(counter.variable.handle) for counter in counters}
    kept = [variable.name for variable in step.written if id(variable.handle) not in set_back]
    if kept:
        cause = f"reset_state does not set back {', '.join(kept[:3])}"
        return Reason.of("metric-state", cause)
    return None


def _changing(names: Sequence[str]) -> Reason:
    return Reason.of("validation-writes", ", ".join(names[:3]))
