"""One training step: traced once, for the loops, the inspection and everything else that makes steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from overlap_train._inspection.traced import TracedFunction, trace
from overlap_train._keras import data as keras_data
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import optimizers as keras_optimizers
from overlap_train._keras import training as keras_training

Batch = Any
Logs = Mapping[str, Any]
StepFunction = Callable[[Batch], Logs]


class Step:
    """A training step as the loops use it, after `adopt` or, for an eager model, as it is.

    `stock` says that it is Keras's own; `listened_to` that a callback reads the logs of each step.
    """

    def __init__(
        self,
        model: keras.Model,
        function: StepFunction,
        *,
        jit_compile: bool = False,
        halt_on_nonfinite: bool = False,
        listened_to: bool = False,
        metrics: Callable[[], Logs] | None = None,
        stock: bool = False,
    ) -> None:
        self._model = model
        self._function = _batch_function(model, function, jit_compile)
        self.jit_compile = jit_compile
        self._stock = stock
        self._read_metrics = metrics if metrics is not None else model.get_metrics_result
        self._listened_to = listened_to or halt_on_nonfinite
        self.halts = halt_on_nonfinite  # at the first loss that is not finite
        self.traced: TracedFunction | None = None
        # None of them where nobody reads them: the model's metrics have the same values at any later time.
        self.logs = NO_LOGS
        # Whether an epoch's logs are the last step's: Keras takes the metrics where both have the same names.
        self.own_logs = True
        self._present_metrics: Sequence[keras.metrics.Metric] = ()
        self._methods: Sequence[Any] = ()
        self.metrics = MetricsReader(self._read_metrics, eager=True)
        self._adopted: TracedFunction | None = None  # also where this step is traced in parts

    def trace(self, element_spec: Any, rows: int | None = None) -> TracedFunction:
        """Trace the step without running it, which builds the layers and the optimizers that it uses."""
        scales = keras_optimizers.built_before_it_scales(self._model) if self._stock else nullcontext()
        with scales:
            return TracedFunction(self._function, element_spec, rows=rows, harmless=self._harmless)

    def _harmless(self) -> list[Any]:
        """Return the handles of variables whose creation changes no trace."""
        metrics = keras_metrics.stock_metric_handles(self._model)
        return metrics + keras_optimizers.stock_optimizer_handles(self._model) if self._stock else metrics

    def adopt(self, traced: TracedFunction, metrics: MetricsReader | None = None) -> None:
        """Use a trace of this step, of this fit or an earlier one, and its reader of the metrics if any."""
        self.traced = self._adopted = traced
        require_logs("train_step", traced.outputs)
        model = self._model
        # A user's code may name other metrics in each epoch.
        varies = keras_metrics.has_custom_metrics(model)
        varies = varies or keras_models.overriding_class(model, "metrics") is not None
        self.own_logs = varies or set(traced.outputs) != set(model.get_metrics_result())
        self._present_metrics = [] if self.own_logs else list(model.metrics)
        self._methods = keras_metrics.custom_methods(model)
        self.logs = CarriedLogs(traced.outputs) if self.own_logs or self._listened_to else NO_LOGS
        self.metrics = metrics if metrics is not None else MetricsReader(self._read_metrics)

    def changed_metrics(self) -> str | None:
        """Return how to name what has changed of the metrics if logs are made otherwise now, or None."""
        if self._adopted is None:
            return None
        if self._methods != keras_metrics.custom_methods(self._model):
            return keras_metrics.REPLACED
        if self.own_logs or self.traced is None:
            return None
        outputs = self.traced.outputs
        return keras_metrics.changed_metrics(self._model, self._present_metrics, outputs, own_logs=False)

    def using(self, function: StepFunction, *, jit_compile: bool = False) -> Step:
        """Return a copy of this step with a function that computes the same, traced where it is used."""
        other = copy.copy(self)
        other._function = _batch_function(self._model, function, jit_compile)
        other.jit_compile = jit_compile
        other.traced = None
        return other

    def run(self, batch: Batch) -> Logs:
        """Make one step; inside a trace, add a call of the step's trace."""
        logs: Logs = self._function(batch) if self.traced is None else self.traced(batch)
        return logs

    def find_no_batch(self) -> None:
        """Do what Keras does where a step finds that the data has ended. On the training thread."""
        if self._adopted is not None and keras_training.counts_without_batch(self._model):
            change = self._adopted.without_batch
            if change is not None:
                change()

    def run_and_check(self, batch: Batch) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Make one step; return whether training may go on, and the logs that a loop has to carry."""
        logs = self.run(batch)
        finite = tf.constant(True)
        if self.halts and "loss" in logs:
            finite = tf.reduce_all(tf.math.is_finite(logs["loss"]))
        return finite, self.logs.flat(logs)


class CarriedLogs:
    """Logs of any structure and shape, as flat tensors that a compiled loop carries from step to step."""

    def __init__(self, structure: Any) -> None:
        self._structure = tf.nest.map_structure(
            lambda value: None if value is None else tf.type_spec_from_value(value), structure
        )
        leaves = tf.nest.flatten(self._structure, expand_composites=True)
        self._is_none = [leaf is None for leaf in leaves]
        self.specs: list[tf.TensorSpec] = [leaf for leaf in leaves if leaf is not None]

    @property
    def shapes(self) -> list[tf.TensorShape]:
        """The shapes of the flat tensors."""
        return [spec.shape for spec in self.specs]

    def empty(self) -> list[tf.Tensor]:
        """Return the tensors that stand for the logs before the first step."""
        shapes = [[] if shape.rank is None else [n or 0 for n in shape] for shape in self.shapes]
        return [tf.zeros(shape, spec.dtype) for shape, spec in zip(shapes, self.specs, strict=True)]

    def flat(self, logs: Any) -> list[tf.Tensor]:
        """Return a step's logs as flat tensors, if any are carried."""
        if not self.specs:
            return []
        tensors = tf.nest.map_structure(lambda v: v if v is None else tf.convert_to_tensor(v), logs)
        leaves = tf.nest.flatten(tensors, expand_composites=True)
        return [leaf for leaf in leaves if leaf is not None]

    def packed(self, tensors: Sequence[tf.Tensor]) -> Logs:
        """Return logs from flat tensors."""
        rest = iter(tensors)
        leaves = [None if is_none else next(rest) for is_none in self._is_none]
        logs: Logs = tf.nest.pack_sequence_as(self._structure, leaves, expand_composites=True)
        return logs


NO_LOGS = CarriedLogs({})


class MetricsReader:
    """Reads a model's metrics, in one compiled call unless a user's code computes them (`by_python`)."""

    def __init__(self, read: Callable[[], Logs], *, eager: bool = False, by_python: bool = False) -> None:
        self._read = read
        self.by_python = by_python
        self._eager = eager
        self._traced: TracedFunction | None = None
        # Metrics whose result is a variable itself. Keras turns an epoch's logs into numbers after its
        # validation, so these then show the validation's value.
        self.live: frozenset[str] = frozenset()

    def __call__(self) -> Logs:
        """Return the metrics as they stand now. Belongs to the training thread."""
        if not self._eager and self._traced is None:
            self._traced = trace(self._read_and_note)
            self._eager = self._traced is None  # such as for a metric that computes its result with NumPy
        logs: Logs = self._traced() if self._traced is not None else self._read_and_note()
        return dict(logs)

    def _read_and_note(self) -> Logs:
        logs = self._read()
        self.live = frozenset(
            name for name, value in logs.items() if isinstance(value, (keras.Variable, tf.Variable))
        )
        return logs


def require_optimizer(model: keras.Model) -> None:
    """Raise ValueError if the model's own `train_step` needs an optimizer and there is none."""
    if (
        model.optimizer is None
        and keras_models.is_stock_method(model.train_step)
        and model.trainable_variables
    ):
        raise ValueError(
            f"the model {model.name!r} has no optimizer; pass one to model.compile(optimizer=...)"
        )


def require_logs(name: str, logs: Any) -> None:
    """Raise TypeError unless a step returned a mapping."""
    if not isinstance(logs, Mapping):
        raise TypeError(
            f"{name} returned {type(logs).__name__}; expected a dict of names and values, such as "
            "self.model.get_metrics_result()"
        )


def lists_joined(logs: Any) -> Any:
    """Return logs with lists as tensors, as Keras returns them (`tf.experimental.Optional`)."""
    if not isinstance(logs, dict):
        return logs
    return {name: tf.convert_to_tensor(v) if isinstance(v, list) else v for name, v in logs.items()}


def _batch_function(model: keras.Model, function: StepFunction, jit_compile: bool) -> StepFunction:
    if jit_compile:
        function = tf.function(function, jit_compile=True, autograph=False, reduce_retracing=True)

    def run(batch: Batch) -> Logs:
        with keras_optimizers.without_all_reduce(model.optimizer):
            return lists_joined(function(keras_data.without_optionals(batch)))

    return run
