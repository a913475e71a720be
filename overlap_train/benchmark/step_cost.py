"""What one training step costs in each kind of loop: tiny perceptron and MNIST network, without validation.

    python -m overlap_train.benchmark.step_cost --model=mlp
    python -m overlap_train.benchmark.step_cost --model=mnist_cnn --configure

Random inputs of the right shapes and types: only the time is of interest. The ways take turns, so that a
disturbance of the machine meets all of them; the figures are medians and minima of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from overlap_train.configuration import configure
from overlap_train.data.cursor import Cursor
from overlap_train.data.sources import FeedOptions, make_feed
from overlap_train.models.mlp import mlp
from overlap_train.models.mnist_cnn import mnist_cnn
from overlap_train.training.execution import Task, make_execution
from overlap_train.training.plan import ExecutionPlan
from overlap_train.training.step import Step, build_model

__all__ = ["main"]


@dataclass(frozen=True)
class _Case:
    """A network and its batches."""

    network: Callable[[], keras.Model]
    shape: tuple[int, ...]
    dtype: str
    batch_size: int
    steps: int
    plans: dict[str, ExecutionPlan]


def _cases(threads_set: bool) -> dict[str, _Case]:
    ours = {
        "iterator": ExecutionPlan(loop="iterator", jit=False, batch_splits=1),
        "in_memory": ExecutionPlan(jit=False, batch_splits=1),
    }
    split = {f"in_memory, {n} splits": ExecutionPlan(batch_splits=n) for n in (2, 4)} if threads_set else {}
    compiled = {"in_memory, XLA": ExecutionPlan(jit=True)}
    return {
        "mlp": _Case(mlp, (32,), "float32", 32, 2000, {**ours, **compiled}),
        "mnist_cnn": _Case(
            lambda: mnist_cnn(from_uint8=True), (28, 28, 1), "uint8", 128, 40, {**ours, **split}
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


def _keras_way(case: _Case, steps_per_execution: int) -> Callable[[], None]:
    model, (x, y) = _compiled(case, steps_per_execution), _data(case)
    return lambda: _ignore(model.fit(x, y, batch_size=case.batch_size, verbose=0))


def _our_way(case: _Case, plan: ExecutionPlan) -> Callable[[], None]:
    model, (x, y) = _compiled(case), _data(case)
    options = FeedOptions(batch_size=case.batch_size)
    feed = make_feed(x, y, None, options, hold_in_memory=lambda _: plan.loop != "iterator")
    step = Step(model, model.train_step)
    task = Task(model, feed, step, build_model(model, step, feed.element_spec), model.train_step, True, None)
    loop, _ = make_execution(task, plan, _ignore)
    cursor = Cursor(feed, None)

    def epoch() -> None:
        cursor.begin_epoch()
        while remaining := cursor.remaining():
            loop.run(cursor, remaining)
        cursor.end_epoch()

    return epoch


def _ignore(_: object) -> None:
    pass


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
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        run()
    for _ in range(arguments.rounds):
        for name, run in ways.items():
            start_s, start_cpu_s = time.monotonic(), time.process_time()
            run()
            wall[name].append((time.monotonic() - start_s) / case.steps * 1e6)
            cpu[name].append((time.process_time() - start_cpu_s) / case.steps * 1e6)
    print(f"{arguments.model}, microseconds a step: wall median, wall least, CPU median")
    for name in ways:
        row = (statistics.median(wall[name]), min(wall[name]), statistics.median(cpu[name]))
        print(f"{name:36s} {row[0]:10.0f} {row[1]:10.0f} {row[2]:10.0f}")


if __name__ == "__main__":
    main()
