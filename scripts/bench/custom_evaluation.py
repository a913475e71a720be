"""Measures how much of an evaluation function the training hides: one that waits, and one that computes.

    python -m scripts.bench.custom_evaluation --repeats 5
    python -m scripts.bench.custom_evaluation --repeats 3 --functions waits --publish

Each repeat trains three times in turn: without the function, with it in a callback's on_epoch_end (Keras's
order), and with it beside the training. Hidden is (callback - beside) / (callback - without), of the medians;
in brackets what nine of ten draws of as many repeats would give (bootstrap).
The last epoch has no training beside it; with n epochs at most (n - 1) / n can be hidden. "Not waited for" is
the part of the function's seconds in which the training thread did not stand still; a machine that others
use hardly changes it for a function that waits. Of one that computes, idle cores can take over at most
what the cores have left without it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

import overlap_train
from scripts.bench import command
from scripts.bench.publish import Finding, publish
from scripts.bench.table import Cells, layout

__all__ = ["main"]

_FEATURES = 256
_COLUMNS = (
    *("function", "overlap", "without, s", "in a callback, s", "beside, s", "hidden", "not waited for"),
    *("at most", "idle cores allow"),
)
_WORDS = """\
A function of the user's is called for each epoch: in a callback's `on_epoch_end`, where the training
waits for it, or as `ValidationPolicy(functions=…)`, while the training goes on. One function waits, for a
part of an epoch; the other computes. *Hidden* is (in a callback - beside) / (in a callback - without) by the
clock, of the medians. The smallest and the largest time are in brackets, and behind *hidden* what nine of ten
draws of as many repeats would give (bootstrap). *Not waited for* is the
part of the function's seconds in which the training thread did not stand still. *At most* allows for the
last epoch, which has no training beside it. *Idle cores allow* is what the cores have left without the
function, as a part of the processor seconds that it adds."""


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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the journal does not hold, and prints a table; returns 0."""
    line = _command()
    options = line.parse(argv)
    overlap_train.configure()
    with line.journal(options) as journal:
        epoch_s = journal.once("epoch", functools.partial(_epoch_s, options))
        found = {
            f"{name}, {overlap}": journal.once(
                f"{name}/{overlap}", functools.partial(_compare, options, name, overlap, epoch_s)
            )
            for name in options.functions.split(",")
            for overlap in ("auto", "always")
        }
        cells = Cells(_COLUMNS, tuple(_row(key, fits, options.epochs) for key, fits in found.items()))
        said = f"An epoch takes {epoch_s:.3f} s, the function that waits {options.share * epoch_s:.3f} s."
        print(f"{said}\n{layout(cells)}\n{journal.others_line}")
        if options.publish:
            page = Finding(
                series=options.publish,
                question="How much of an evaluation function that waits is hidden?",
                title="Evaluation functions beside the training",
                words=f"{_WORDS}\n\n{said}",
                command=line.as_typed,
                tables=[(f"{options.epochs} epochs, medians of {options.repeats} fits in turn", cells)],
                data={"epoch_s": epoch_s, "fits": found},
            )
            print(f"Published: {publish(page, journal.machine, journal.others_line)}")
    return 0


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--functions", default="waits,computes", help="of waits and computes")
    parser.add_argument("--rows", type=int, default=8192, help="of the training data")
    parser.add_argument(
        "--share", type=float, default=0.5, help="of an epoch that the waiting function takes"
    )
    return command.Command(
        parser,
        script="python -m scripts.bench.custom_evaluation",
        series="custom-evaluation",
        output_dir="results/custom_evaluation",
    )


def _epoch_s(options: argparse.Namespace) -> float:
    """Returns the shortest: a function that takes longer than an epoch cannot be hidden behind one."""
    return min(_fit(options, None, "without").seconds for _ in range(3)) / options.epochs


def _compare(
    options: argparse.Namespace, name: str, overlap: str, epoch_s: float
) -> dict[str, list[dict[str, float]]]:
    """Returns the fits of each way, in turn, forwards and backwards."""
    function: Callable[[keras.Model], float] = {
        "waits": lambda model: _wait(options.share * epoch_s),
        "computes": lambda model: _compute(model, options.rows),
    }[name]
    fits: dict[str, list[dict[str, float]]] = {"without": [], "callback": [], overlap: []}
    for repeat in range(options.repeats):
        for way in list(fits) if repeat % 2 else reversed(list(fits)):
            fits[way].append(dataclasses.asdict(_fit(options, function, way)))
    return fits


def _row(key: str, fits: dict[str, list[dict[str, float]]], epochs: int) -> tuple[str, ...]:
    """Returns the cells of a line of the table."""
    name, overlap = key.split(", ")
    seconds = {way: [fit["seconds"] for fit in each] for way, each in fits.items()}
    cpu_s = {way: statistics.median(fit["cpu_s"] for fit in each) for way, each in fits.items()}
    without, callback, beside = seconds.values()
    idle_s = statistics.median(without) * (os.cpu_count() or 1) - cpu_s["without"]
    allowed = min(1.0, max(0.0, idle_s) / max(cpu_s["callback"] - cpu_s["without"], 1e-9))
    apart = statistics.median(fit["apart"] for fit in fits[overlap])
    times = [
        f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in seconds.values()
    ]
    low, high = _interval(without, callback, beside)
    hidden = f"{_hidden(without, callback, beside):.0%} ({low:.0%} to {high:.0%})"
    shares = (f"{share:.0%}" for share in (apart, (epochs - 1) / epochs, allowed))
    return (name, overlap, *times, hidden, *shares)


def _hidden(*seconds: Sequence[float]) -> float:
    without, callback, beside = map(statistics.median, seconds)
    return (callback - beside) / (callback - without)


def _interval(*seconds: Sequence[float]) -> tuple[float, float]:
    """Returns the 5th and 95th percentile of what is hidden in repeats drawn anew from these."""
    rng = random.Random(0)
    repeats = range(len(seconds[0]))
    drawn = []
    for _ in range(2000):
        chosen = rng.choices(repeats, k=len(repeats))
        drawn.append(_hidden(*([each[i] for i in chosen] for each in seconds)))
    twentieths = statistics.quantiles(drawn, n=20)
    return twentieths[0], twentieths[-1]


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
    sys.exit(command.run(main))
