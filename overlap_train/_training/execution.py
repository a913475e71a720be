"""From a plan to a loop: how the steps of a model are executed, by rules that say the same in every run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import keras
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.feed import Feed
from overlap_train._inspection.graph import arithmetic
from overlap_train._inspection.traces import Same, Traces
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._training.loops import HostsLoop, Loop, Pace, make_loop
from overlap_train._training.settings import TrainerSettings
from overlap_train._training.splitting import SplitStep, find_obstacle, unknown_layer
from overlap_train._training.step import Step, StepFunction
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.threads import available_cores, splits_pay, splits_would_pay

__all__ = ["Task", "find_xla_obstacle", "make_execution"]

# With so many floating-point operations in a step, its parts surely gain from cores of their own.
_HEAVY_FLOP = 1e8
# With at most so many, starting the operations is what a step costs, and XLA starts one; compiling it takes
# as long as some thousand steps save (docs/results/2026-11-24-step-cost.md).
_TINY_FLOP, _STEPS_THAT_PAY_XLA = 1e7, 10_000


class FasterOperations(Protocol):
    """Faster operations than Keras's for a model."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of what they compute."""

    def around(self, function: StepFunction, rows: int | None) -> StepFunction:
        """Return a function of batches of so many rows that does the same on them when it is traced."""


@dataclass(frozen=True)
class Task:
    """What is to be executed."""

    settings: TrainerSettings
    feed: Feed
    step: Step  # on the operations of `kernels`
    function: StepFunction  # of one batch in `step`, without those and what runs it under a strategy
    total_steps: int | None  # of the whole run, if that is known
    step_key: Hashable  # what the traced step depends on
    kernels: FasterOperations | None

    @property
    def model(self) -> keras.Model:
        """The model to be trained."""
        return self.settings.model


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to execute the steps."""

    splits: int = 1  # parts of a batch that run at the same time
    jit: bool = False  # whether XLA compiles them

    def __str__(self) -> str:
        splits = f"{self.splits} splits" if self.splits > 1 else "no splits"
        return f"{splits}, {'XLA' if self.jit else 'no XLA'}"


def make_execution(task: Task, plan: ExecutionPlan, message: Callable[[str], None]) -> tuple[Loop, Pace]:
    """Return the loop that makes the steps, and the pace that sizes its calls.

    `message` gets the plan in one line. A plan that asks for what this model or data cannot do is a
    ValueError that says why.
    """
    if plan.loop == "in_memory" and not isinstance(task.feed, ArrayFeed):
        raise ValueError(
            "loop='in_memory' needs arrays or tensors; this data is a dataset, a generator or sparse. Pass "
            "arrays, or leave the loop to be chosen"
        )
    fixed = None if plan.steps_per_call == "auto" else int(plan.steps_per_call)
    pace = Pace(fixed)
    if keras_models.runs_eagerly(task.model):
        message("plan: eager")
        return make_loop(task.feed, task.step.using(task.settings.around()(task.function)), eager=True), pace
    known, token, key = Traces.of(task.model), keras_training.begin_training(task.model), _loop_key(task)
    flags = tuple(variable.trainable for variable in task.model.variables)
    if known.get("train", token, ("flags", Same(task.step.traced)), lambda: flags) != flags:
        # What is traced now would obey `trainable`, and train what only the validation has built; Keras goes
        # on with what it has traced until `compile`.
        message("plan: as traced before layers were frozen, thawed or built; compile the model to use them")
        loop = known.get("train", token, ("frozen", *key), lambda: make_loop(task.feed, task.step))
        return loop, pace

    def loop_key(way: _Way, *, asked: bool) -> Hashable:
        return key, way, asked, getattr(task.feed, "num_samples", None) if way.jit else None

    compiled = known.has("train", token, loop_key(_Way(jit=True), asked=False))
    way, asked = _choose(task, plan, compiled=compiled)
    if _misses_configure(task, plan):
        message(
            f"batches could be split over the {available_cores()} cores: call overlap_train.configure() "
            "right after the imports, or pass ExecutionPlan(batch_splits=1) to do without"
        )
    loop = known.get("train", token, loop_key(way, asked=asked), lambda: _build(task, way, asked=asked))
    loop.splits = way.splits
    fast = "" if task.kernels is None else f", fast {', '.join(task.kernels.names)}"
    loop.plan = f"{way}{fast}"
    message(f"plan: {loop.name}, {loop.plan}" + (f", {fixed} steps a call" if fixed is not None else ""))
    return loop, pace


def _choose(task: Task, plan: ExecutionPlan, *, compiled: bool) -> tuple[_Way, bool]:
    """Return the way to execute the steps, and whether it was asked for; XLA may have `compiled` them."""
    if task.settings.shared:
        _refuse_for_replicas(task, plan)
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
    if plan.batch_splits == "auto" and splits_pay() and _gains_from_splits(task):
        return _Way(splits=2 * available_cores()), False
    may_compile = plan.jit == "auto" and plan.kernels != "fast" and (compiled or _pays_for_xla(task))
    return _Way(jit=may_compile and find_xla_obstacle(task.model, task.feed) is None), False


def _gains_from_splits(task: Task) -> bool:
    """Whether parts of a batch surely gain from cores of their own.

    Not those of a recurrent layer, which runs its operations once for each time step and part: they are too
    small as it is.
    """
    heavy = _arithmetic(task) > _HEAVY_FLOP or any("Conv" in name for name in _kinds(task.model))
    return heavy and not _is_recurrent(task.model) and not find_obstacle(task.model, task.feed.element_spec)


def _pays_for_xla(task: Task) -> bool:
    """Whether the run is long enough, and its steps small enough."""
    long = task.total_steps is not None and task.total_steps >= _STEPS_THAT_PAY_XLA
    return long and not _is_recurrent(task.model) and _arithmetic(task) <= _TINY_FLOP


def _arithmetic(task: Task) -> float:
    """Return about how many floating-point operations a step takes."""
    return arithmetic(task.step.traced.graph, task.feed.full_batch or 32) if task.step.traced else 0.0


def _kinds(model: keras.Model) -> list[str]:
    return [type(layer).__name__ for layer in keras_models.flat_layers(model)]


def _is_recurrent(model: keras.Model) -> bool:
    return any(isinstance(layer, keras.layers.RNN) for layer in keras_models.flat_layers(model))


def _refuse_for_replicas(task: Task, plan: ExecutionPlan) -> None:
    asked = "batch_splits" if plan.splits else "jit=True" if plan.jit is True else ""
    if plan.kernels == "fast":
        raise ValueError(
            "kernels='fast' is not possible under a tf.distribute strategy of several replicas; "
            "call overlap_train.accelerate(model) instead"
        )
    if not asked and task.model.jit_compile:
        asked = "model.compile(jit_compile=True)"
    if asked:
        raise ValueError(
            f"{asked} is not possible under a tf.distribute strategy of several replicas, which "
            "share each batch already and which XLA cannot compile as one; leave it out"
        )


def find_xla_obstacle(model: keras.Model, feed: Feed) -> str | None:
    """Say why the loop over a model's steps is not to be compiled by XLA unasked, or return None."""
    if not isinstance(feed, ArrayFeed):
        return "XLA cannot contain an iterator"
    if feed.num_samples < feed.batch_size:
        return "there is no full batch"
    if feed.num_samples % feed.batch_size and keras_metrics.tracks_each_loss(model):
        return "the losses of several outputs are averaged otherwise where a batch has a static size"
    unknown = unknown_layer(model, also=("BatchNormalization",))
    if unknown is not None:
        return f"nothing is known of {unknown}"
    for layer in keras_models.flat_layers(model):
        if "Conv" in type(layer).__name__:
            return "XLA's convolutions on a CPU are several times slower"
        draws = any(getattr(layer, name, 0) for name in ("rate", "dropout", "recurrent_dropout"))
        if getattr(layer, "seed_generator", None) is not None and draws:
            return f"XLA draws other random numbers for {layer.name!r}"
    return None


def _build(task: Task, way: _Way, *, asked: bool) -> Loop:
    around = _around(task, way.splits)
    if way.splits > 1:
        split = SplitStep(task.model, way.splits, task.function, around)
        return make_loop(task.feed, task.step.using(split))
    function = around(task.function)
    if not way.jit:
        # On several replicas a call of the trace leaves a placeholder of the batch's size unfed, where a
        # pipeline brings batches of an unknown size (TensorFlow 2.21).
        unfed = task.settings.shared and not isinstance(task.feed, ArrayFeed)
        traced = not (task.step.jit_compile or unfed)
        step = task.step if traced else task.step.using(function)
        replicas = task.settings.replicas
        if replicas is not None and replicas.own_rows:
            return HostsLoop(step, replicas, task.feed.element_spec)
        return make_loop(task.feed, step)
    plain = task.step.using(function)
    # Where batches of an unknown size matter, each step is compiled by itself, for whatever size comes.
    partial = not isinstance(task.feed, ArrayFeed) or (
        bool(task.feed.num_samples % task.feed.batch_size) and keras_metrics.tracks_each_loss(task.model)
    )
    each = task.step.using(function, jit_compile=True)
    if partial:
        return make_loop(task.feed, each)
    # Who asks for XLA gets its random numbers in every batch.
    return make_loop(task.feed, plain, jit_last_step=each if asked else plain, asked=asked)


def _around(task: Task, splits: int) -> Callable[[StepFunction], StepFunction]:
    """Return what the function of a batch has to run in."""
    # What is returned is kept with the loop and must not hold the task, which holds the data.
    rows = task.feed.full_batch
    part = None if rows is None else -(-rows // splits)
    kernels, outer = task.kernels, task.settings.around()

    def around(function: StepFunction) -> StepFunction:
        return outer(function if kernels is None else kernels.around(function, part))

    return around


def _checked_splits(task: Task, splits: int) -> int:
    obstacle = "Trainer.train_step is overridden"
    if task.settings.stock:
        obstacle = find_obstacle(task.model, task.feed.element_spec, trusted=True) or ""
    if obstacle:
        raise ValueError(
            f"batch_splits={splits} is not possible for the model {task.model.name!r}: {obstacle}; "
            "use batch_splits=1 or 'auto'"
        )
    return splits


def _may_choose(task: Task) -> bool:
    """Whether a step may be executed otherwise than Keras does, unasked: it is Keras's own, on the CPU.

    It may not where results must repeat bit by bit.
    """
    if not task.settings.stock or not keras_models.is_stock_method(task.model.train_step):
        return False
    if task.step.traced is not None and task.step.traced.effects:
        return False  # each way would draw random numbers of its own
    return not keras_training.is_deterministic() and not tf.config.list_logical_devices("GPU")


def _misses_configure(task: Task, plan: ExecutionPlan) -> bool:
    """Whether parts of a batch would surely gain from cores of their own, had `configure` been called."""
    unasked = plan.batch_splits == "auto" and plan.jit == "auto" and not task.model.jit_compile
    if task.settings.shared or not unasked or not splits_would_pay() or not _may_choose(task):
        return False
    return _gains_from_splits(task)


def _loop_key(task: Task) -> tuple[Hashable, ...]:
    """Return what a loop depends on: the step that it makes, and what the data looks like."""
    feed, step = task.feed, task.step
    tensors = keras.tree.flatten(feed.tensors) if isinstance(feed, ArrayFeed) else ()
    return (
        "loop",
        task.step_key,
        Same(step.traced),
        str(feed.element_spec),
        step.halts,
        step.logs is not None,
        str([(tensor.shape[1:], tensor.dtype) for tensor in tensors]),
        getattr(feed, "batch_size", None),
        Same(feed.preprocess) if isinstance(feed, ArrayFeed) else None,
    )
