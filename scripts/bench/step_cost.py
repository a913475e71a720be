"""What one training step costs in each kind of loop: tiny perceptron and MNIST network, without validation.

    python -m scripts.bench.step_cost --model=mlp
    python -m scripts.bench.step_cost --model=mnist_cnn --configure

Random inputs of the right shapes and types: only the time is of interest. The ways take turns, so that a
disturbance of the machine meets all of them; the figures are medians and minima of the rounds.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from overlap_train._data.cursor import Cursor
from overlap_train._data.training_data import make_feed
from overlap_train._keras.data import recognize
from overlap_train._training.execution import Task, make_execution
from overlap_train._training.kernels.choice import find_fast_kernels
from overlap_train._training.loops import Loop
from overlap_train._training.step import Step
from overlap_train.models.mlp import mlp
from overlap_train.models.mnist_cnn import mnist_cnn
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.threads import configure

__all__ = ["main"]

_SLOWER = 20  # so many fewer steps in a round of the eager loop


@dataclass(frozen=True)
class _Case:
    """A network and its batches."""

    network: Callable[[], keras.Model]
    shape: tuple[int, ...]
    dtype: str
    batch_size: int
    steps: int
    plans: dict[str, ExecutionPlan]


@dataclass
class _Way:
    """A way to train: makes `steps` steps when called, and is built by its first call.

    Attributes:
        run: makes the steps.
        steps: how many.
        build_s: seconds of the first call, which traces and compiles.
        wall_us: microseconds of each call, by step.
        cpu_us: the same of all cores' time.
    """

    run: Callable[[], object]
    steps: int
    build_s: float = 0.0
    wall_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def build(self) -> None:
        """Makes the first call."""
        start_s = time.monotonic()
        self.run()
        self.build_s = time.monotonic() - start_s

    def time(self) -> None:
        """Makes a later one."""
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        self.run()
        self.wall_us.append((time.monotonic() - start_s) / self.steps * 1e6)
        self.cpu_us.append((time.process_time() - start_cpu_s) / self.steps * 1e6)

    def row(self) -> tuple[float, float, float, float]:
        """Returns median and least wall time, median CPU time, and by what the first call took longer."""
        wall_us = statistics.median(self.wall_us)
        build_s = max(0.0, self.build_s - wall_us * self.steps / 1e6)
        return wall_us, min(self.wall_us), statistics.median(self.cpu_us), build_s


def _cases(threads_set: bool) -> dict[str, _Case]:
    plain = ExecutionPlan(jit=False, batch_splits=1, kernels="keras")
    ours = {
        "iterator": replace(plain, loop="iterator"),
        "in_memory": plain,
    }
    fast = {"in_memory, fast kernels": replace(plain, kernels="fast")}
    for parts in (2, 4) if threads_set else ():
        ours[f"in_memory, {parts} splits"] = replace(plain, batch_splits=parts)
        name = f"in_memory, {parts} splits, fast kernels"
        fast[name] = replace(plain, batch_splits=parts, kernels="fast")
    compiled = {"in_memory, XLA": ExecutionPlan(jit=True)}
    small = {name: plan for name, plan in ours.items() if not plan.splits}
    return {
        "mlp": _Case(mlp, (32,), "float32", 32, 2000, {**small, **compiled}),
        "mnist_cnn": _Case(
            lambda: mnist_cnn(from_uint8=True), (28, 28, 1), "uint8", 128, 40, {**ours, **fast}
        ),
    }


def _compiled(case: _Case, steps_per_execution: int = 1) -> keras.Model:
    model = case.network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], steps_per_execution=steps_per_execution)
    return model


def _data(case: _Case) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    rows = case.steps * case.batch_size
    return rng.integers(0, 255, (rows, *case.shape)).astype(case.dtype), rng.integers(0, 10, rows)


def _keras_way(case: _Case, steps_per_execution: int) -> _Way:
    model, (x, y) = _compiled(case, steps_per_execution), _data(case)
    return _Way(lambda: model.fit(x, y, batch_size=case.batch_size, verbose=0), case.steps)


def _our_way(case: _Case, plan: ExecutionPlan) -> _Way:
    model, (x, y) = _compiled(case), _data(case)
    data = recognize(x, y, batch_size=case.batch_size, shuffle=True)
    feed = make_feed(data, hold_in_memory=lambda _: plan.loop != "iterator")
    step = Step(model, model.train_step)
    step.adopt(step.trace(feed.element_spec))
    task = Task(
        model,
        feed,
        step,
        model.train_step,
        True,
        None,
        find_fast=functools.cache(lambda: find_fast_kernels(model, build=True)),
    )
    cursor = Cursor(feed, None)
    steps = case.steps
    loops: list[Loop] = []

    def run() -> None:
        if not loops:
            loops.append(make_execution(task, plan, lambda _: None)[0])
        cursor.begin_epoch()
        left = steps
        while left:
            left -= loops[0].run(cursor, left).steps
        cursor.end_epoch()

    return _Way(run, steps)


def main() -> None:
    """Times every way in turn and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("mlp", "mnist_cnn"), default="mlp")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is timed")
    parser.add_argument(
        "--configure", action="store_true", help="one intra-op thread, as batch splitting needs"
    )
    arguments = parser.parse_args()
    if arguments.configure:
        print(configure())
    case = _cases(arguments.configure)[arguments.model]
    ways = {f"keras fit, steps_per_execution={n}": _keras_way(case, n) for n in (1, 50)}
    ways |= {name: _our_way(case, plan) for name, plan in case.plans.items()}
    for way in ways.values():
        way.build()
    for _ in range(arguments.rounds):
        for way in ways.values():
            way.time()
    print(f"{arguments.model}, microseconds a step: wall median, wall least, CPU median; seconds to build")
    for name, way in ways.items():
        wall_us, least_us, cpu_us, build_s = way.row()
        print(f"{name:36s} {wall_us:10.0f} {least_us:10.0f} {cpu_us:10.0f} {build_s:8.1f}")


if __name__ == "__main__":
    main()
