"""From a plan to a loop: which ways of executing the steps are open for a model, its data and a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import tensorflow as tf

from overlap_train import _keras
from overlap_train.configuration import available_cores, splits_pay, splits_would_pay
from overlap_train.data.sources import ArrayFeed, Feed
from overlap_train.training.loops import Loop, make_loop
from overlap_train.training.obstacles import find_obstacle, unknown_layer
from overlap_train.training.pace import Pace
from overlap_train.training.plan import ExecutionPlan
from overlap_train.training.plan_cache import Candidate, PlanCache, cache_directory, fingerprint
from overlap_train.training.planner import PlannedLoop
from overlap_train.training.splitting import SplitStep
from overlap_train.training.step import Step, StepFunction

__all__ = ["LoopCache", "Task", "find_xla_obstacle", "make_execution"]

_HEAVY_FLOP = 1e8


class LoopCache:
    """Traced loops, kept from one `fit` to the next. They hold no data.

    Keras, too, traces its training function once and again only after `compile`.
    """

    def __init__(self) -> None:
        self._loops: dict[Any, Loop] = {}

    def get(self, key: Any, build: Callable[[], Loop]) -> Loop:
        """Returns the loop of a key; forgets those whose first part differs, as they belong to the past."""
        self._loops = {k: loop for k, loop in self._loops.items() if k[0] == key[0]}
        if key not in self._loops:
            self._loops[key] = build()
        return self._loops[key]

    def has(self, key: Any) -> bool:
        """Whether the loop of a key is traced already."""
        return key in self._loops


class FastKernels(Protocol):
    """Faster operations than Keras's for a model."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of what they compute."""

    @property
    def extra_s(self) -> float:
        """About how many seconds longer a step with them takes to be traced."""

    def around(self, function: StepFunction, rows: int | None) -> StepFunction:
        """Returns a function of batches of so many rows that does the same on them when it is traced."""


@dataclass(frozen=True)
class Task:
    """What is to be executed.

    Attributes:
        model: built and compiled.
        feed: its data.
        step: the step, inspected.
        logs_spec: what `Step.inspect` returned.
        function: the function of one batch in `step`, without what is `around` it.
        stock: whether that function is the model's `train_step` itself, not a user's override in the trainer.
        total_steps: training steps of the whole run, or None if nobody knows.
        loops: traced loops of earlier runs, to be used again where nothing has changed.
        around: what runs a function of a batch under the model's strategy, if it has one.
        shared: whether several replicas share each batch.
        find_fast: finds the faster operations than Keras's for this model, if there are any; the same ones
            each time.
    """

    model: keras.Model
    feed: Feed
    step: Step
    logs_spec: dict[str, tf.TensorSpec]
    function: StepFunction
    stock: bool
    total_steps: int | None
    loops: LoopCache | None = None
    around: Callable[[StepFunction], StepFunction] = lambda step: step
    shared: bool = False
    find_fast: Callable[[], FastKernels | None] = lambda: None

    @property
    def fast(self) -> str:
        """The names of what the faster operations compute; "" if there are none."""
        found = self.find_fast()
        return ", ".join(found.names) if found is not None else ""


def make_execution(task: Task, plan: ExecutionPlan, message: Callable[[str], None]) -> tuple[Loop, Pace]:
    """Returns the loop that makes the steps, and the pace that sizes its calls.

    Args:
        task: what to execute.
        plan: what the user has fixed.
        message: told the plan in one line as soon as it stands.

    Raises:
        ValueError: if the plan asks for what this model or data cannot do; it says why.
    """
    if plan.loop == "in_memory" and not isinstance(task.feed, ArrayFeed):
        raise ValueError(
            "loop='in_memory' needs arrays or tensors; this data is a dataset, a generator or sparse. Pass "
            "arrays, or leave the loop to be chosen"
        )
    fixed = None if plan.steps_per_call == "auto" else int(plan.steps_per_call)
    pace = Pace(plan.call_s, fixed)
    if plan.loop == "eager" or task.model.run_eagerly:
        message("plan: eager")
        return make_loop(task.feed, task.step, task.logs_spec, eager=True), pace
    candidates = _candidates(task, plan)
    if _misses_configure(task, plan):
        message(
            f"batches could be split over the {available_cores()} cores: call overlap_train.configure() "
            "right after the imports, or pass ExecutionPlan(batch_splits=1) to do without"
        )
    directory = cache_directory() if len(candidates) > 1 else None
    path = directory / f"{_key(task)}.json" if directory is not None else None

    asked = len(candidates) == 1
    known = task.loops if task.loops is not None else LoopCache()
    key = (_trace_key(task), asked)

    def build(candidate: Candidate) -> Loop:
        return known.get((key, candidate), lambda: _build(task, candidate, asked))

    fast = task.find_fast() if any(candidate.fast for candidate in candidates) else None
    loop = PlannedLoop(
        candidates,
        build,
        pace,
        total_steps=task.total_steps,
        cache=PlanCache(path),
        message=message,
        is_traced=lambda candidate: known.has((key, candidate)),
        fast_extra_s=fast.extra_s if fast is not None else 0.0,
    )
    return loop, pace


def _candidates(task: Task, plan: ExecutionPlan) -> list[Candidate]:
    """Returns the ways to execute the steps that are open, the most promising first."""
    if task.shared:
        _refuse_for_replicas(task, plan)
        return [Candidate()]
    fast = task.fast if plan.kernels == "fast" else ""
    if plan.jit is True or (plan.jit == "auto" and task.model.jit_compile and not plan.splits):
        if fast:
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
    found = [Candidate(splits=parts, fast=fast) for parts in splits]
    if not may_time or fast:
        return found
    if not plan.splits and plan.jit == "auto" and find_xla_obstacle(task.model, task.feed) is None:
        found.append(Candidate(jit=True))
    if plan.kernels == "auto" and task.fast:
        found += [Candidate(splits=parts, fast=task.fast) for parts in splits]
    return found


def _open_splits(task: Task) -> list[int]:
    """Returns the numbers of parts to be tried, the most promising first."""
    if find_obstacle(task.model, task.feed.element_spec):
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
    """Says why the loop over a model's steps is not to be compiled by XLA unasked, or returns None."""
    if not isinstance(feed, ArrayFeed):
        return "XLA cannot contain an iterator"
    if feed.num_samples < feed.batch_size:
        return "there is no full batch"
    if feed.num_samples % feed.batch_size and _keras.tracks_each_loss(model):
        return "the losses of several outputs are averaged otherwise where a batch has a static size"
    unknown = unknown_layer(model, also=("BatchNormalization",))
    if unknown is not None:
        return f"nothing is known of {unknown}"
    for layer in _keras.flat_layers(model):
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
        return make_loop(task.feed, task.step.using(split), task.logs_spec)
    function = around(task.function)
    plain = task.step.using(function)
    if not candidate.jit:
        return make_loop(task.feed, plain, task.logs_spec)
    # Where batches of an unknown size matter, each step is compiled by itself, for whatever size comes.
    partial = not isinstance(task.feed, ArrayFeed) or (
        bool(task.feed.num_samples % task.feed.batch_size) and _keras.tracks_each_loss(task.model)
    )
    each = task.step.using(function, jit_compile=True)
    if partial:
        return make_loop(task.feed, each, task.logs_spec)
    # Who asks for XLA gets its random numbers in every batch.
    return make_loop(task.feed, plain, task.logs_spec, jit_last_step=each if asked else plain)


def _around(task: Task, candidate: Candidate) -> Callable[[StepFunction], StepFunction]:
    """Returns what the function of a batch has to run in."""
    fast = task.find_fast() if candidate.fast else None
    if fast is None:
        return task.around
    # What is returned is kept with the loop and must not hold the task, which holds the data.
    around, rows = task.around, task.feed.full_batch
    part = None if rows is None else -(-rows // candidate.splits)
    return lambda function: around(fast.around(function, part))


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

    Nor where results must repeat bit by bit.
    """
    stock = task.stock and _keras.is_stock_method(task.model.train_step)
    return stock and not _keras.is_deterministic() and not tf.config.list_logical_devices("GPU")


def _misses_configure(task: Task, plan: ExecutionPlan) -> bool:
    """Whether parts of a batch would surely gain from cores of their own, had `configure` been called."""
    unasked = plan.batch_splits == "auto" and plan.jit == "auto" and not task.model.jit_compile
    if task.shared or not unasked or not splits_would_pay() or not _may_time(task):
        return False
    return _is_heavy(task) and find_obstacle(task.model, task.feed.element_spec) is None


def _is_heavy(task: Task) -> bool:
    """Whether a step has so much arithmetic that its parts surely gain from cores of their own."""
    layers = _keras.flat_layers(task.model)
    if any("Conv" in type(layer).__name__ for layer in layers):
        return True
    rows = getattr(task.feed, "batch_size", None) or 32
    return bool(6.0 * rows * task.model.count_params() > _HEAVY_FLOP)


@dataclass(frozen=True, eq=False)
class _Same:
    """Equal to what holds the same object, which stays alive, so that no other one has its `id`."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


def _trace_key(task: Task) -> Any:
    """Returns what a traced loop depends on."""
    model, feed = task.model, task.feed
    parts = (model, model.optimizer, *_keras.compiled_parts(model), *model.variables)
    tensors = keras.tree.flatten(feed.tensors) if isinstance(feed, ArrayFeed) else ()
    return (
        tuple(_Same(part) for part in parts),
        tuple(variable.trainable for variable in model.variables),
        str(feed.element_spec),
        tuple(tuple(tensor.shape) for tensor in tensors),
        getattr(feed, "batch_size", None),
        task.step.halts,
        task.step.carries_logs,
        getattr(task.function, "__func__", task.function),
    )


def _key(task: Task) -> str:
    batch_size = getattr(task.feed, "batch_size", None)
    return fingerprint(task.model, task.feed.element_spec, type(task.feed).__name__, batch_size)
