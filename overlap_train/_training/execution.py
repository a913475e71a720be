"""From a plan to a loop: how a model's steps are executed, by rules that choose the same in every run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.feed import Feed
from overlap_train._data.validation_data import ArrayBatches
from overlap_train._inspection.graph import arithmetic
from overlap_train._inspection.traces import Same, Traces
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._training.drawn_loops import EagerLoop, HostsLoop, IteratorLoop
from overlap_train._training.kernels import FastKernels
from overlap_train._training.loops import ArrayLoop, Loop, Pace
from overlap_train._training.settings import TrainerSettings
from overlap_train._training.splitting import SplitStep, find_obstacle
from overlap_train._training.step import Step, StepFunction
from overlap_train._training.strategy import refuse_for_replicas
from overlap_train._training.xla import compiled_loop, is_harmless, may_compile
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.threads import available_cores, splits_pay, splits_would_pay, ways_are_fixed

# Floating-point operations of a step above which its parts surely gain from cores of their own.
_HEAVY_FLOP = 1e8
_FIXED_SPLITS = 4  # of a process whose results must not depend on its cores: as many as two cores get
# Up to this many, a step spends its time on starting operations, of which XLA starts one; compiling takes
# as long as some thousand steps save (docs/results/2026-11-24-step-cost.md). A time step of a recurrent layer
# counts as one; its loops are compiled for as long as some 30,000 of them save (2026-12-01-recurrent.md).
_TINY_FLOP, _STEPS_THAT_PAY_XLA, _TIME_STEPS_THAT_PAY_XLA = 1e7, 10_000, 30_000


@dataclass(frozen=True)
class Task:
    """The step to be executed, its data and what decides how."""

    settings: TrainerSettings
    feed: Feed
    step: Step  # on the operations of `kernels`
    function: StepFunction  # of one batch in `step`, without the kernels and the strategy around it
    total_steps: int | None  # of the whole run, if that is known
    step_key: Hashable  # what the traced step depends on
    kernels: FastKernels | None

    @property
    def model(self) -> keras.Model:
        """The model to be trained."""
        return self.settings.model


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to execute the steps."""

    splits: int = 1  # parts of a batch that run at the same time
    jit: bool = False  # whether XLA compiles the steps

    def __str__(self) -> str:
        splits = f"{self.splits} splits" if self.splits > 1 else "no splits"
        return f"{splits}, {'XLA' if self.jit else 'no XLA'}"


def make_execution(task: Task, plan: ExecutionPlan, message: Callable[[str], None]) -> tuple[Loop, Pace]:
    """Return the loop that makes the steps, and the pace that sizes its calls.

    `message` gets what a user has to know. A plan that this model or data cannot follow is a ValueError.
    """
    if plan.loop == "in_memory" and not isinstance(task.feed, ArrayFeed):
        raise ValueError(
            "loop='in_memory' needs arrays or tensors; this data is a dataset, a generator or sparse. Pass "
            "arrays, or leave the loop to be chosen"
        )
    fixed = None if plan.steps_per_call == "auto" else int(plan.steps_per_call)
    pace = Pace(fixed)
    if keras_models.runs_eagerly(task.model):
        return EagerLoop(task.step.using(task.settings.around()(task.function))), pace
    traces, key = Traces.of(task.model, "train"), _loop_key(task)
    flags = tuple(variable.trainable for variable in task.model.variables)
    if traces.get(("flags", Same(task.step.traced)), lambda: flags) != flags:
        # What is traced now would obey `trainable`, and train what only the validation has built; Keras goes
        # on with what it has traced until `compile`.
        message("plan: as traced before layers were frozen, thawed or built; compile the model to use them")
        return traces.get(("frozen", *key), lambda: make_loop(task.feed, task.step)), pace

    way, by_request = _choose(task, plan)
    if _misses_configure(task, plan):
        message(
            f"batches could be split over the {available_cores()} cores: call overlap_train.configure() "
            "right after the imports, or pass ExecutionPlan(batch_splits=1) to do without"
        )
    build = functools.partial(_build, task, way, by_request=by_request)
    loop_key = key, way, by_request, getattr(task.feed, "num_samples", None) if way.jit else None
    loop = traces.get(loop_key, build)
    loop.splits = way.splits
    fast = "" if task.kernels is None or way.jit else f", fast {', '.join(task.kernels.names)}"
    loop.plan = f"{way}{fast}"
    loop.description = f"{loop.name}, {loop.plan}" + (f", {fixed} steps a call" if fixed else "")
    return loop, pace


def _choose(task: Task, plan: ExecutionPlan) -> tuple[_Way, bool]:
    """Return the way to execute the steps, and whether the plan or the model asks for it."""
    if task.settings.shared:
        refuse_for_replicas(plan, jit_compile=task.model.jit_compile)
        return _Way(), True
    if plan.jit is True or (plan.jit == "auto" and task.model.jit_compile and not plan.splits):
        if plan.kernels == "fast" and task.kernels is not None:
            raise ValueError(
                "kernels='fast' is not possible where XLA compiles the steps, as this model asks for: "
                "compile it with jit_compile=False, or pass ExecutionPlan(jit=False, kernels='fast')"
            )
        return _Way(jit=True), True
    if plan.splits:
        return _Way(splits=_checked_splits(task, int(plan.batch_splits))), True
    if not _may_choose(task):
        return _Way(), True
    fixed = ways_are_fixed()
    if plan.batch_splits == "auto" and (fixed or splits_pay()) and _gains_from_splits(task):
        return _Way(splits=_FIXED_SPLITS if fixed else 2 * available_cores()), False
    if fixed:
        return _Way(), True
    model, feed, traced = task.model, task.feed, task.step.traced
    if traced is None or not isinstance(feed, ArrayFeed) or plan.jit is False or plan.kernels == "fast":
        return _Way(), False
    if not pays_for_xla(model, feed, traced.graph, task.total_steps or 0):
        return _Way(), False
    by_xla = may_compile(model, feed, traced.graph) and is_harmless(feed.tensors, traced.graph)
    return _Way(jit=by_xla), False


def _gains_from_splits(task: Task) -> bool:
    """Whether parts of a batch surely gain from cores of their own; a recurrent layer's are too small."""
    layers = keras_models.flat_layers(task.model)
    heavy = _arithmetic(task) > _HEAVY_FLOP or any("Conv" in type(layer).__name__ for layer in layers)
    return (
        heavy and not _recurrent_layers(task.model) and not find_obstacle(task.model, task.feed.element_spec)
    )


def pays_for_xla(model: keras.Model, data: ArrayFeed | ArrayBatches, graph: Any, steps: int) -> bool:
    """Whether there are so many steps, and they, or those in time, are so small that XLA saves time."""
    length, enough, flop = 1, _STEPS_THAT_PAY_XLA, 0.0
    for layer in _recurrent_layers(model):
        if layer.unroll:
            return False  # each time step would be compiled by itself
        length, enough = _sequence_length(data.element_spec), _TIME_STEPS_THAT_PAY_XLA
        flop += 4.0 * data.batch_size * layer.count_params()  # products within its loops
    return steps * length >= enough and flop + arithmetic(graph, data.batch_size) / length <= _TINY_FLOP


def _sequence_length(element_spec: Any) -> int:
    x = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(element_spec)[0])
    return max((spec.shape[1] or 1 for spec in x if (spec.shape.rank or 0) > 1), default=1)


def _arithmetic(task: Task) -> float:
    """Return about how many floating-point operations a step takes."""
    return arithmetic(task.step.traced.graph, task.feed.full_batch or 32) if task.step.traced else 0.0


def _recurrent_layers(model: keras.Model) -> list[keras.layers.RNN]:
    layers = keras_models.flat_layers(model)
    return [layer for layer in layers if isinstance(layer, keras.layers.RNN) and layer.built]


def make_loop(feed: Feed, step: Step) -> Loop:
    """Return the loop that TensorFlow compiles for a feed."""
    return ArrayLoop(feed, step) if isinstance(feed, ArrayFeed) else IteratorLoop(step)


def _build(task: Task, way: _Way, *, by_request: bool) -> Loop:
    around, feed = _around(task, way), task.feed
    if way.splits > 1:
        return make_loop(feed, task.step.using(SplitStep(task.model, way.splits, task.function, around)))
    function = around(task.function)
    if way.jit:
        compiled = compiled_loop(task.model, feed, task.step, function, by_request=by_request)
        return compiled or make_loop(feed, task.step.using(function, jit_compile=True))
    # On several replicas a call of the trace leaves a placeholder of the batch's size unfed, where a
    # pipeline brings batches of an unknown size (TensorFlow 2.21).
    unfed = task.settings.shared and not isinstance(feed, ArrayFeed)
    step = task.step.using(function) if task.step.jit_compile or unfed else task.step
    replicas = task.settings.replicas
    if replicas is not None and replicas.own_rows:
        return HostsLoop(step, replicas, feed.element_spec)
    return make_loop(feed, step)


def _around(task: Task, way: _Way) -> Callable[[StepFunction], StepFunction]:
    """Return what puts a batch's function on the kernels and under the strategy."""
    # The loop keeps it, so it must not hold the task, which holds the data.
    rows = task.feed.full_batch
    part_rows = None if rows is None else -(-rows // way.splits)
    kernels, outer = None if way.jit else task.kernels, task.settings.around()

    def around(function: StepFunction) -> StepFunction:
        return outer(function if kernels is None else kernels.around(function, part_rows))

    return around


def _checked_splits(task: Task, splits: int) -> int:
    obstacle = "Trainer.train_step is overridden"
    if task.settings.stock:
        obstacle = find_obstacle(task.model, task.feed.element_spec) or ""
    if obstacle:
        raise ValueError(
            f"batch_splits={splits} is not possible for the model {task.model.name!r}: {obstacle}; "
            "use batch_splits=1 or 'auto'"
        )
    return splits


def _may_choose(task: Task) -> bool:
    """Whether we may choose another way than Keras's: for its own step, unless results must repeat."""
    if not task.settings.stock or not keras_models.is_stock_method(task.model.train_step):
        return False
    if task.step.traced is not None and task.step.traced.effects:
        return False  # each way would draw random numbers of its own
    repeats = keras_training.is_deterministic() and not ways_are_fixed()  # Keras's bits are wanted
    return not repeats and not tf.config.list_logical_devices("GPU")


def _misses_configure(task: Task, plan: ExecutionPlan) -> bool:
    """Whether parts of a batch would surely gain from cores of their own, had `configure` been called."""
    is_free = plan.batch_splits == "auto" and plan.jit == "auto" and not task.model.jit_compile
    if task.settings.shared or not is_free or not splits_would_pay() or not _may_choose(task):
        return False
    return _gains_from_splits(task)


def _loop_key(task: Task) -> tuple[Hashable, ...]:
    """Return what a loop depends on: its step, and the structure of the data."""
    feed, step = task.feed, task.step
    tensors = keras.tree.flatten(feed.tensors) if isinstance(feed, ArrayFeed) else ()
    return (
        "loop",
        task.step_key,
        Same(step.traced),
        str(feed.element_spec),
        step.halts,
        bool(step.logs.specs),
        str([(tensor.shape[1:], tensor.dtype) for tensor in tensors]),
        getattr(feed, "batch_size", None),
        Same(feed.preprocess) if isinstance(feed, ArrayFeed) else None,
    )
