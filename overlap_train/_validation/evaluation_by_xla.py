"""Evaluating arrays in calls that XLA compiles, behind a training that it compiles and by the same rule."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._data.validation_data import ArrayBatches, ArrayFold, Batches
from overlap_train._inspection.traced import trace
from overlap_train._inspection.traces import Same, Traces
from overlap_train._snapshot import ModelState, Values
from overlap_train._training.execution import pays_for_xla
from overlap_train._training.xla import is_harmless, may_compile
from overlap_train._validation.evaluation import (
    PartFunctions,
    SnapshotEvaluator,
    State,
)
from overlap_train._validation.validation_step import ValidationStep


def may_evaluate(model: keras.Model, step: ValidationStep, batches: Batches, runs: int) -> bool:
    """Whether XLA may evaluate a set unasked, so many times."""
    if not isinstance(batches, ArrayBatches) or step.own_logs or tf.config.list_logical_devices("GPU"):
        return False
    graph, steps = step.step.graph, batches.num_batches * runs
    return pays_for_xla(model, batches, graph, steps) and may_compile(model, batches, graph)


class XlaEvaluator(SnapshotEvaluator):
    """Evaluates snapshots on arrays; XLA compiles the full batches of a part, unless the data forbids it.

    The data is looked at when it is due to be read, with the first part. A part whose metrics are not finite
    is evaluated again by TensorFlow, which takes NaN otherwise.
    """

    def __init__(
        self,
        model: keras.Model,
        state: ModelState,
        step: ValidationStep,
        batches: Any,
    ) -> None:
        super().__init__(model, state, step, batches)
        key = ("by XLA", Same(self._functions))
        compile_part = functools.partial(_compile_part, self._functions, batches.fold)
        self._part_by_xla = Traces.of(model, "test").get(key, compile_part)
        # None until the data has been looked at.
        self._by_xla: bool | None = None if self._part_by_xla is not None else False

    def warm_up(self, values: Values) -> None:
        super().warm_up(values)
        if self._part_by_xla is None:
            return
        number = tf.constant(0, tf.int64)
        with contextlib.suppress(tf.errors.OpError):  # which the first evaluation finds, too
            self._part_by_xla(self._variables(values), self._batches.blank_rows, number, number)

    def _run(self, *arguments: Any) -> Any:
        if self._by_xla is None:
            self._by_xla = is_harmless(self._batches.held, self._step.step.graph)
        if self._by_xla:
            try:
                state, logs = self._part_by_xla(*arguments)
            except tf.errors.OpError:
                self._by_xla = False  # XLA cannot compile the step; an error of the data comes again
            else:
                if all(np.isfinite(value.numpy()).all() for value in state):
                    return state, logs
        return super()._run(*arguments)


def _compile_part(functions: PartFunctions, fold: ArrayFold) -> Any:
    """Returns what `functions.part` is, with the full batches compiled by XLA, which knows their size.

    None if the data does not fit, which the first validation will say as Keras does.
    """
    always_full = dataclasses.replace(fold, all_full=True)

    def part(
        values: Sequence[tf.Tensor], data: Any, first: tf.Tensor, stop: tf.Tensor
    ) -> tuple[State, list[tf.Tensor]]:
        handles = functions.reset(values)

        def full_batches(own: Sequence[tf.Tensor], data: Any, first: tf.Tensor, stop: tf.Tensor) -> None:
            functions.loop(dict(zip(handles, own, strict=True)), always_full, data, first, stop)

        rows = tf.shape(tf.nest.flatten(data)[0], tf.int64)[0]
        full = tf.clip_by_value(rows // fold.batch_size, first, stop)
        # XLA creates no variables, so it gets the handles.
        compiled = tf.function(full_batches, autograph=False, jit_compile=True)
        compiled(list(handles.values()), data, first, full)
        logs = functions.loop(handles, fold, data, full, stop)
        return functions.read(handles), logs

    return trace(part, *functions.part.structured_input_signature[0])
