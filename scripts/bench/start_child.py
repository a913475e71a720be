"""One process of the comparison of starts: times whole calls and prints them as one line of JSON.

Run by `start.py`. The clock runs from the call to its return, tracing, compiling and planning included; what
is left out is the import and the building of the model, which are the same for both.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

from scripts.bench.machine import status_bytes

_CALLS = ("first", "second", "evaluate", "again", "new trainer", "five fits")


def main() -> None:
    """Times the calls that the arguments name."""
    options = _options()
    ours = options.system != "keras"
    if ours:
        import overlap_train

        overlap_train.configure(deterministic=options.system == "deterministic")
    from scripts.bench.start_networks import given_as, make

    network, _, source = options.network.partition(":")
    model, *arrays = make(network, options.steps, options.batch_size)
    train, validation, batches = given_as(source or "arrays", *arrays, options.batch_size)
    from overlap_train import Trainer

    trainer: Any = Trainer(model) if ours else model
    arguments = {**batches, "verbose": 0}
    evaluated = validation if isinstance(validation, tuple) else (validation,)

    def fit(of: Any, epochs: int, callbacks: Any = None) -> Any:
        return of.fit(*train, epochs=epochs, validation_data=validation, callbacks=callbacks, **arguments)

    calls: dict[str, Callable[[], Any]] = {
        "second": lambda: fit(trainer, options.epochs),
        "evaluate": lambda: trainer.evaluate(*evaluated, **arguments),
        "again": lambda: trainer.evaluate(*evaluated, **arguments),
        "new trainer": lambda: fit(Trainer(model) if ours else model, options.epochs),
        "five fits": lambda: [fit(trainer, 1) for _ in range(5)],
    }
    seconds = _first(lambda callbacks: fit(trainer, options.epochs, callbacks), trainer, options)
    for name, call in calls.items():
        if name in options.calls:
            start_s = time.monotonic()
            call()
            seconds[name] = time.monotonic() - start_s
    peak = status_bytes("VmHWM") / 2**20
    messages = trainer.messages if ours else []
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "messages": messages}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", choices=("keras", "ours", "deterministic"), required=True)
    parser.add_argument("--network", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--calls", default=",".join(_CALLS), help="those to be timed, separated by commas")
    options = parser.parse_args()
    options.calls = options.calls.split(",")
    if unknown := set(options.calls) - {*_CALLS, "steady"}:
        parser.error(f"there is no call {sorted(unknown)}")
    if "steady" in options.calls and options.epochs < 3:
        parser.error("a steady epoch is one behind the second: --epochs must be at least 3")
    return options


def _first(fit: Callable[[Any], Any], trainer: Any, options: argparse.Namespace) -> dict[str, float]:
    """Times the first fit, if it or its steady epochs are asked for."""
    if not {"first", "steady"} & set(options.calls):
        return {}
    begun_s: list[float] = []
    callbacks = None
    if options.system == "keras" and "steady" in options.calls:
        callbacks = [_Begins(begun_s)]
    start_s = time.monotonic()
    fit(callbacks)
    end_s = time.monotonic()
    seconds = {"first": end_s - start_s} if "first" in options.calls else {}
    if "steady" in options.calls:
        if options.system != "keras":  # the same without a hook that would forbid running ahead
            spans = [span for span in trainer.recorder.spans() if span.name == "train"]
            begun_s = [min(s.start_s for s in spans if s.epoch == e) for e in range(options.epochs)]
        seconds["steady"] = (end_s - begun_s[2]) / (options.epochs - 2)
    return seconds


class _Begins(keras.callbacks.Callback):
    """Writes down when each epoch begins."""

    def __init__(self, begun_s: list[float]) -> None:
        super().__init__()
        self._begun_s = begun_s

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begun_s.append(time.monotonic())


if __name__ == "__main__":
    main()
