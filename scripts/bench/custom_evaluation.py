"""Measures how much of an evaluation function the training hides: one that waits, and one that computes.

    python -m scripts.bench.custom_evaluation --repeats 5
    python -m scripts.bench.custom_evaluation --repeats 3 --functions waits

Each repeat trains three times in turn: without the function, with it in a callback's on_epoch_end (Keras's
order), and with it beside the training. Hidden is (callback - beside) / (callback - without), of the medians.
The last epoch has no training beside it; with n epochs at most (n - 1) / n can be hidden. "Not waited for" is
the part of the function's seconds in which the training thread did not stand still; a machine that others
use hardly changes it for a function that waits. Of one that computes, idle cores can take over at most
what the cores have left without it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

import overlap_train

_FEATURES = 256


@dataclass(frozen=True)
class _Fit:
    """What a fit took.

    Attributes:
        seconds: by the clock.
        cpu_s: of all threads.
        apart: the part of the function's seconds that the training did not wait for.
    """

    seconds: float
    cpu_s: float
    apart: float


def main() -> None:
    """Runs the comparison and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--functions", nargs="+", choices=["waits", "computes"], default=["waits", "computes"]
    )
    parser.add_argument("--rows", type=int, default=8192, help="of the training data")
    parser.add_argument(
        "--share", type=float, default=0.5, help="of an epoch that the waiting function takes"
    )
    options = parser.parse_args()
    overlap_train.configure()
    # The shortest: a function that takes longer than an epoch cannot be hidden behind one.
    epoch_s = min(_fit(options, None, "without").seconds for _ in range(3)) / options.epochs
    seconds = options.share * epoch_s
    functions = {
        "waits": lambda model: _wait(seconds),
        "computes": lambda model: _compute(model, options.rows),
    }
    print(f"an epoch takes {epoch_s:.3f} s, the waiting function {seconds:.3f} s")
    print(
        "| function | overlap | without | in a callback | beside | hidden | not waited for | at most "
        "| idle cores allow |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.functions:
        for overlap in ("auto", "always"):
            fits: dict[str, list[_Fit]] = {"without": [], "callback": [], overlap: []}
            for repeat in range(options.repeats):
                for way in list(fits) if repeat % 2 else reversed(list(fits)):
                    fits[way].append(_fit(options, functions[name], way))
            print(_row(name, overlap, fits, options.epochs), flush=True)


def _row(name: str, overlap: str, fits: dict[str, list[_Fit]], epochs: int) -> str:
    """Returns a line of the table."""
    without, callback, beside = (statistics.median(fit.seconds for fit in each) for each in fits.values())
    cpu_s = {way: statistics.median(fit.cpu_s for fit in each) for way, each in fits.items()}
    hidden = (callback - beside) / (callback - without)
    apart = statistics.median(fit.apart for fit in fits[overlap])
    times = [fit.seconds for fit in fits[overlap]]
    idle_s = without * (os.cpu_count() or 1) - cpu_s["without"]
    allowed = min(1.0, max(0.0, idle_s) / max(cpu_s["callback"] - cpu_s["without"], 1e-9))
    return (
        f"| {name} | {overlap} | {without:.2f} s | {callback:.2f} s | {beside:.2f} s "
        f"(spread {max(times) - min(times):.2f}) | {hidden:.0%} | {apart:.0%} | {(epochs - 1) / epochs:.0%} "
        f"| {allowed:.0%} |"
    )


def _fit(options: argparse.Namespace, function: Callable[[keras.Model], float] | None, way: str) -> _Fit:
    """Trains once, warmed up."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(options.rows, _FEATURES)).astype("float32"), rng.integers(0, 10, options.rows)
    layers = [keras.layers.Dense(512, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((_FEATURES,)), *layers, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    arguments: dict[str, Any] = {"batch_size": 128, "verbose": 0}
    policy = overlap_train.ValidationPolicy()
    if way == "callback":
        arguments["callbacks"] = [_Calls(function)]
    elif way != "without" and function is not None:
        policy = overlap_train.ValidationPolicy(functions={"value": function}, overlap=way)
    trainer = overlap_train.Trainer(model, validation=policy)
    trainer.fit(x, y, epochs=1, **arguments)
    start_s, start_cpu_s = time.monotonic(), time.process_time()
    trainer.fit(x, y, epochs=options.epochs, **arguments)
    seconds, cpu_s = time.monotonic() - start_s, time.process_time() - start_cpu_s
    validated_s = sum(account.validated_s for account in trainer.accounts)
    waited_s = sum(account.waited_s for account in trainer.accounts)
    return _Fit(seconds, cpu_s, 1 - waited_s / validated_s if validated_s else 0.0)


class _Calls(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls a function as users do today."""

    def __init__(self, function: Callable[[keras.Model], float] | None) -> None:
        super().__init__()
        self._function = function

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        assert self._function is not None
        self._function(self.model)


def _wait(seconds: float) -> float:
    time.sleep(seconds)
    return 0.0


def _compute(model: keras.Model, rows: int) -> float:
    x = np.random.default_rng(1).normal(size=(rows, _FEATURES)).astype("float32")
    return float(np.mean(model.predict(x, batch_size=512, verbose=0)))


if __name__ == "__main__":
    main()
