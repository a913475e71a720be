"""What a strategy with one replica costs: the same training with none, and under two kinds of strategy.

    python -m scripts.bench.strategy_overhead --model=mnist_cnn

The ways take turns, so that a disturbance of the machine meets all of them. For each round the time of a
step under a strategy is divided by the one without in the same round; the median of these ratios and their
quartiles are printed. Random inputs: only the time is of interest.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import overlap_train
from overlap_train.models.mlp import mlp
from overlap_train.models.mnist_cnn import mnist_cnn

__all__ = ["main"]

_CASES: dict[str, tuple[Callable[[], keras.Model], tuple[int, ...], int, int]] = {
    "mlp": (mlp, (32,), 32, 3000),
    "mnist_cnn": (mnist_cnn, (28, 28, 1), 128, 40),
}


def _way(case: str, strategy: tf.distribute.Strategy | None, steps: int) -> Callable[[], float]:
    """Returns a function that trains an epoch and returns the seconds of a step."""
    network, shape, batch_size, _ = _CASES[case]
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = network()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    plan = overlap_train.ExecutionPlan(loop="in_memory", jit=False, batch_splits=1, steps_per_call=steps)
    trainer = overlap_train.Trainer(model, execution=plan)
    rng = np.random.default_rng(0)
    x = rng.random((steps * batch_size, *shape), "float32")
    y = rng.integers(0, 10, steps * batch_size)

    def epoch() -> float:
        trainer.fit(x, y, batch_size=batch_size, epochs=1, verbose=0)
        return float(trainer.accounts[-1].trained_s) / steps

    return epoch


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Times every way in turn, prints a table and returns the median ratios by way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(_CASES), default="mlp")
    parser.add_argument("--rounds", type=int, default=61, help="how often each way is timed")
    parser.add_argument("--steps", type=int, default=None, help="training steps in a round")
    options = parser.parse_args(arguments)
    steps = options.steps or _CASES[options.model][3]
    strategies = {
        "no strategy": None,
        "OneDeviceStrategy": tf.distribute.OneDeviceStrategy("CPU:0"),
        "MirroredStrategy, one replica": tf.distribute.MirroredStrategy(["CPU:0"]),
    }
    ways = {name: _way(options.model, strategy, steps) for name, strategy in strategies.items()}
    for run in ways.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(options.rounds):
        for name in names[number % 3 :] + names[: number % 3]:
            times[name].append(ways[name]())
    print(f"{options.model}, {options.rounds} rounds of {steps} steps: microseconds, over no strategy")
    medians = {}
    for name, values in times.items():
        ratios = [a / b for a, b in zip(values, times["no strategy"], strict=True)]
        low, medians[name], high = statistics.quantiles(ratios, n=4)
        step_us = statistics.median(values) * 1e6
        print(f"{name:32s} {step_us:10.1f}   {medians[name]:.3f} ({low:.3f} to {high:.3f})")
    return medians


if __name__ == "__main__":
    main()
