"""Measures how much of an evaluation function the training hides: one that waits, and one that computes.

Run: .venv/bin/python scripts/bench/custom_evaluation.py --repeats 5

Each repeat trains three times in turn: without the function, with it in a callback's on_epoch_end (Keras's
order), and with it beside the training. Hidden is (callback - beside) / (callback - without), of the medians.
The last epoch has no training beside it; with n epochs at most (n - 1) / n can be hidden.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import overlap_train

_ROWS, _FEATURES = 8192, 256


def main() -> None:
    """Runs the comparison and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--share", type=float, default=0.5, help="of an epoch that the waiting function takes"
    )
    options = parser.parse_args()
    overlap_train.configure()
    epoch_s = _seconds(options.epochs, None, "without") / options.epochs
    seconds = options.share * epoch_s
    functions = {"waits": lambda model: _wait(seconds), "computes": _compute}
    print(f"an epoch takes {epoch_s:.3f} s, the waiting function {seconds:.3f} s")
    print("| function | overlap | without | in a callback | beside | hidden (at most) |")
    print("|---|---|---|---|---|---|")
    for name, function in functions.items():
        for overlap in ("auto", "always"):
            times: dict[str, list[float]] = {"without": [], "callback": [], overlap: []}
            for repeat in range(options.repeats):
                for way in list(times) if repeat % 2 else reversed(list(times)):
                    times[way].append(_seconds(options.epochs, function, way))
            without, callback, beside = (statistics.median(each) for each in times.values())
            hidden = (callback - beside) / (callback - without)
            spread = max(times[overlap]) - min(times[overlap])
            most = (options.epochs - 1) / options.epochs
            print(
                f"| {name} | {overlap} | {without:.2f} s | {callback:.2f} s | {beside:.2f} s "
                f"(spread {spread:.2f}) | {hidden:.0%} ({most:.0%}) |",
                flush=True,
            )


def _seconds(epochs: int, function: Callable[[keras.Model], float] | None, way: str) -> float:
    """Returns how long a warmed-up fit takes."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(_ROWS, _FEATURES)).astype("float32"), rng.integers(0, 10, _ROWS)
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
    start_s = time.monotonic()
    trainer.fit(x, y, epochs=epochs, **arguments)
    return time.monotonic() - start_s


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


def _compute(model: keras.Model) -> float:
    x = np.random.default_rng(1).normal(size=(_ROWS, _FEATURES)).astype("float32")
    return float(np.mean(model.predict(x, batch_size=512, verbose=0)))


if __name__ == "__main__":
    main()
