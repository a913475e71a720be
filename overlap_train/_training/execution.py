"""From a plan to a loop: which ways of executing the steps are open for a model, its data and a machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Protocol

import keras
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.feed import Feed
from overlap_train._inspection.traces import Same, Traces
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._support.caches import plan_times
from overlap_train._training.loops import Loop, Pace, make_loop
from overlap_train._training.planner import PlannedLoop
from overlap_train._training.splitting import SplitStep, find_obstacle, unknown_layer
from overlap_train._training.step import Step, StepFunction
from overlap_train._training.trial import Candidate, PlanCache, plan_key
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.threads import available_cores, splits_pay, splits_would_pay

__all__ = ["Task", "find_xla_obstacle", "make_execution"]

_HEAVY_FLOP = 1e8
# Of a convolution in one direction; large images take longer.
_TIMING_S = 0.1


class FasterOperations(Protocol):
    """Faster operations than Keras's for a model."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of what they compute."""

    @property
    def untimed(self) -> Collection[Hashable]:
        """The convolutions that a trace has met and that nobody has timed yet."""

    def around(self, function: StepFunction, rows: int | None) -> StepFunction:
        """Return a function of batches of so many rows that does the same on them when it is traced."""


@dataclass(frozen=True)
class Task:
    """What is to be executed."""

    model: keras.Model
    feed: Feed
    step: Step  # on the operations of `free`
    function: StepFunction  # of one batch in `step`, without those and what is `around` it
    stock: bool  # `function` is the model's own `train_step`, not one of the trainer's subclass
    total_steps: int | None  # of the whole run, if that is known
    step_key: Hashable = None  # what the traced step depends on
    around: Callable[[StepFunction], StepFunction] = lambda step: step  # runs it under a strategy
    shared: bool = False  # several replicas share each batch
    free: FasterOperations | None = None  # need not be tried
    # Those and others, which do; the same each time.
    find_fast: Callable[[], FasterOperations | None] = lambda: None

    @property
    def fast(self) -> str:
        """The names of what the operations to be tried compute; "" if there are none."""
        return _names(self.find_fast())


def _names(kernels: FasterOperations | None) -> str:
    return ", ".join(kernels.names) if kernels is not None else ""


def _timing_s(task: Task) -> float:
    """Return about how many seconds longer a step takes to be traced where convolutions are timed."""
    if task.free is not None:
        return _TIMING_S * len(task.free.untimed)
    layers = keras_models.flat_layers(task.model)
    return _TIMING_S * 3 * sum(isinstance(layer, keras.layers.Conv2D) for layer in layers)


def make_execution(task: Task, plan: ExecutionPlan, message: Callable[[str], None]) -> tuple[Loop, Pace]:
    """Return the loop that makes the steps, and the pace that sizes its calls.

    `message` gets the plan in one line as soon as it stands. A plan that asks for what this model or data
    cannot do is a ValueError that says why.
    """
    if plan.loop == "in_memory" and not isinstance(task.feed, ArrayFeed):
        raise ValueError(
            "loop='in_memory' needs arrays or tensors; this data is a dataset, a generator or sparse. Pass "
            "arrays, or leave the loop to be chosen"
        )
    fixed = None if plan.steps_per_call == "auto" else int(plan.steps_per_call)
    pace = Pace(plan.call_s, fixed)
    if keras_models.runs_eagerly(task.model):
        message("plan: eager")
        return make_loop(task.feed, task.step.using(task.around(task.function)), eager=True), pace
    known, token, key = Traces.of(task.model), keras_training.begin_training(task.model), _loop_key(task)
    flags = tuple(variable.trainable for variable in task.model.variables)
    if known.get("train", token, ("flags", Same(task.step.traced)), lambda: flags) != flags:
        # What is traced now would obey `trainable`, and train what only the validation has built; Keras goes
        # on with what it has traced until `compile`.
        message("plan: as traced before layers were frozen, thawed or built; compile the model to use them")
        loop = known.get("train", token, ("frozen", *key), lambda: make_loop(task.feed, task.step))
        return loop, pace
    candidates = _candidates(task, plan)
    if _misses_configure(task, plan):
        message(
            f"batches could be split over the {available_cores()} cores: call overlap_train.configure() "
            "right after the imports, or pass ExecutionPlan(batch_splits=1) to do without"
        )
    return _planned_loop(task, candidates, pace, message), pace


def _planned_loop(
    task: Task, candidates: list[Candidate], pace: Pace, message: Callable[[str], None]
) -> PlannedLoop:
    """Return the loop that becomes the fastest candidate's; loops that the model has traced serve again."""
    known, token, key = Traces.of(task.model), keras_training.begin_training(task.model), _loop_key(task)
    directory = plan_times() if len(candidates) > 1 else None
    path = directory / f"{_key(task)}.json" if directory is not None else None
    asked = len(candidates) == 1

    def loop_key(candidate: Candidate) -> Hashable:
        return key, asked, candidate, getattr(task.feed, "num_samples", None) if candidate.jit else None

    def build(candidate: Candidate) -> Loop:
        return known.get("train", token, loop_key(candidate), lambda: _build(task, candidate, asked))

    return PlannedLoop(
        candidates,
        build,
        pace,
        total_steps=task.total_steps,
        cache=PlanCache(path),
        message=message,
        is_traced=lambda candidate: known.has("train", token, loop_key(candidate)),
        free=_names(task.free),
        recurrent=_is_recurrent(task.model),
        fast_extra_s=_timing_s(task) if any(candidate.fast for candidate in candidates) else 0.0,
    )


def _candidates(task: Task, plan: ExecutionPlan) -> list[Candidate]:
    """Return the ways to execute the steps that are open, the most promising first."""
    if task.shared:
        _refuse_for_replicas(task, plan)
        return [Candidate()]
    if plan.jit is True or (plan.jit == "auto" and task.model.jit_compile and not plan.splits):
        if plan.kernels == "fast" and (task.free or task.fast):
            raise ValueError(
                "kernels='fast' is not possible where XLA compiles the steps, as this model asks for: "
                "compile it with jit_compile=False, or pass ExecutionPlan(jit=False, kernels='fast')"
            )
        return [Candidate(jit=True)]
    may_time = _may_time(task)
    splits = [1]
    if plan.splits:
        splits = [_checked_splits(task, int(plan.batch_splits))]
    elif may_time and plan.batch_splits == "auto" and splits_pay():
        splits = _open_splits(task)
    found = [Candidate(splits=parts) for parts in splits]
    if not may_time or plan.kernels == "fast":
        return found
    if not plan.splits and plan.jit == "auto" and find_xla_obstacle(task.model, task.feed) is None:
        found.append(Candidate(jit=True))
    if plan.kernels == "auto" and task.fast:
        found += [Candidate(splits=parts, fast=task.fast) for parts in splits]
    return found


def _is_recurrent(model: keras.Model) -> bool:
    return any(isinstance(layer, keras.layers.RNN) for layer in keras_models.flat_layers(model))


def _open_splits(task: Task) -> list[int]:
    """Return the numbers of parts to be tried, the most promising first.

    A recurrent layer runs its operations once for each time step and part; they are too small as it is.
    """
    if _is_recurrent(task.model) or find_obstacle(task.model, task.feed.element_spec):
        return [1]
    cores = available_cores()
    return [2 * cores, cores, 1] if _is_heavy(task) else [1, 2 * cores, cores]


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


def _build(task: Task, candidate: Candidate, asked: bool) -> Loop:
    around = _around(task, candidate)
    if candidate.splits > 1:
        split = SplitStep(task.model, candidate.splits, task.function, around)
        return make_loop(task.feed, task.step.using(split))
    function = around(task.function)
    if not candidate.jit:
        # On several replicas a call of the trace leaves a placeholder of the batch's size unfed, where a
        # pipeline brings batches of an unknown size (TensorFlow 2.21).
        unfed = task.shared and not isinstance(task.feed, ArrayFeed)
        traced = not (candidate.fast or task.step.jit_compile or unfed)
        return make_loop(task.feed, task.step if traced else task.step.using(function))
    plain = task.step.using(function)
    # Where batches of an unknown size matter, each step is compiled by itself, for whatever size comes.
    partial = not isinstance(task.feed, ArrayFeed) or (
        bool(task.feed.num_samples % task.feed.batch_size) and keras_metrics.tracks_each_loss(task.model)
    )
    each = task.step.using(function, jit_compile=True)
    if partial:
        return make_loop(task.feed, each)
    # Who asks for XLA gets its random numbers in every batch.
    return make_loop(task.feed, plain, jit_last_step=each if asked else plain)


def _around(task: Task, candidate: Candidate) -> Callable[[StepFunction], StepFunction]:
    """Return what the function of a batch has to run in."""
    # What is returned is kept with the loop and must not hold the task, which holds the data.
    rows = task.feed.full_batch
    part = None if rows is None else -(-rows // candidate.splits)
    kernels, outer = task.find_fast() if candidate.fast else task.free, task.around

    def around(function: StepFunction) -> StepFunction:
        return outer(function if kernels is None else kernels.around(function, part))

    return around


def _checked_splits(task: Task, splits: int) -> int:
    obstacle = "Trainer.train_step is overridden"
    if task.stock:
        obstacle = find_obstacle(task.model, task.feed.element_spec, trusted=True) or ""
    if obstacle:
        raise ValueError(
            f"batch_splits={splits} is not possible for the model {task.model.name!r}: {obstacle}; "
            "use batch_splits=1 or 'auto'"
        )
    return splits


def _may_time(task: Task) -> bool:
    """Whether ways to execute the step may be tried: it is Keras's own, and the CPU computes it.

    They may not where results must repeat bit by bit.
    """
    if not task.stock or not keras_models.is_stock_method(task.model.train_step):
        return False
    if task.step.traced is not None and task.step.traced.effects:
        return False  # each way would draw random numbers of its own
    return not keras_training.is_deterministic() and not tf.config.list_logical_devices("GPU")


def _misses_configure(task: Task, plan: ExecutionPlan) -> bool:
    """Whether parts of a batch would surely gain from cores of their own, had `configure` been called."""
    unasked = plan.batch_splits == "auto" and plan.jit == "auto" and not task.model.jit_compile
    if task.shared or not unasked or not splits_would_pay() or not _may_time(task):
        return False
    return _is_heavy(task) and find_obstacle(task.model, task.feed.element_spec) is None


def _is_heavy(task: Task) -> bool:
    """Whether a step has so much arithmetic that its parts surely gain from cores of their own."""
    layers = keras_models.flat_layers(task.model)
    if any("Conv" in type(layer).__name__ for layer in layers):
        return True
    rows = getattr(task.feed, "batch_size", None) or 32
    return bool(6.0 * rows * task.model.count_params() > _HEAVY_FLOP)


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


def _key(task: Task) -> str:
    batch_size = getattr(task.feed, "batch_size", None)
    return plan_key(
        task.model, task.feed.element_spec, type(task.feed).__name__, batch_size, _names(task.free)
    )
