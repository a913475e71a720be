"""One training step, and what it needs before it can be compiled into a loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from overlap_train import _keras

__all__ = ["Batch", "Logs", "Step", "StepFunction", "build_model"]

Batch = Any
Logs = Mapping[str, Any]
StepFunction = Callable[[Batch], Logs]


class Step:
    """A training step as the loops use it.

    Attributes:
        halts: whether the loops end at the first loss that is not finite.
        run: the function of one batch; updates the model's variables and returns the logs.
        carries_logs: whether the loop has to hand the last step's logs on. False where the logs are the
            model's metrics, whose variables tell the same at any later time.
    """

    def __init__(
        self,
        model: keras.Model,
        function: StepFunction,
        *,
        jit_compile: bool = False,
        halt_on_nonfinite: bool = False,
        metrics: Callable[[], Logs] | None = None,
    ) -> None:
        self._model = model
        self.halts = halt_on_nonfinite
        self.run = _prepared(model, function, jit_compile)
        self.carries_logs = False
        self._read_metrics = metrics if metrics is not None else model.get_metrics_result
        self._metrics: Callable[[], Logs] | None = None

    def using(self, function: StepFunction, *, jit_compile: bool = False) -> Step:
        """Returns a step like this one, inspected as it is, that executes the same in another way."""
        other = copy.copy(self)
        other.run = _prepared(self._model, function, jit_compile)
        return other

    def inspect(self, element_spec: Any) -> dict[str, tf.TensorSpec]:
        """Traces one step without running it, which also builds whatever is not built yet.

        Returns:
            The names and specs of the logs that the step returns.

        Raises:
            TypeError: if the step does not return a mapping of names to scalars.
        """
        concrete = tf.function(self.run, autograph=False).get_concrete_function(element_spec)
        logs: Any = concrete.structured_outputs
        if not isinstance(logs, Mapping):
            raise TypeError(
                f"train_step returned {type(logs).__name__}; expected a dict of metric names and values, "
                "such as self.model.get_metrics_result()"
            )
        self.carries_logs = set(logs) != set(self._model.get_metrics_result())
        return {name: tf.TensorSpec(value.shape, value.dtype) for name, value in logs.items()}

    def run_and_check(self, batch: Batch) -> tuple[tf.Tensor, Logs]:
        """Makes one step; returns whether training may go on, and the logs that a loop has to carry.

        Logs that are not carried are left out, so that a compiled loop does not compute them each time.
        """
        logs = self.run(batch)
        finite = tf.constant(True)
        if self.halts and "loss" in logs:
            finite = tf.reduce_all(tf.math.is_finite(logs["loss"]))
        return finite, dict(logs) if self.carries_logs else {}

    def metrics(self) -> Logs:
        """Returns the model's metrics as they stand now."""
        if self._model.run_eagerly:
            return dict(self._read_metrics())
        if self._metrics is None:
            compiled = tf.function(self._read_metrics, autograph=False)
            self._metrics = compiled.get_concrete_function()
        metrics: Logs = self._metrics()
        return metrics


def _prepared(model: keras.Model, function: StepFunction, jit_compile: bool) -> StepFunction:
    if jit_compile:
        function = tf.function(function, jit_compile=True, autograph=False, reduce_retracing=True)

    def run(batch: Batch) -> Logs:
        with _keras.without_all_reduce(model.optimizer):
            return function(_keras.without_optionals(batch))

    return run


def build_model(model: keras.Model, step: Step, element_spec: Any) -> dict[str, tf.TensorSpec]:
    """Makes every variable of a compiled model, in the order in which `keras.Model.fit` makes them.

    Returns:
        The specs of the step's logs.

    Raises:
        ValueError: if the model has no optimizer or cannot be called on such a batch.
    """
    if model.optimizer is None:
        raise ValueError(
            f"the model {model.name!r} has no optimizer; pass one to model.compile(optimizer=...)"
        )
    logs = step.inspect(element_spec)
    if not model.optimizer.built:
        # A step of the user's own may apply its gradients with something else.
        model.optimizer.build(model.trainable_variables)
    if not _keras.compiled_metrics_built(model):
        # Metrics that the step never updates stay unbuilt, as in Keras.
        step.carries_logs = True
    return logs
