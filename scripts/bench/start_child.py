"""One process of the comparison of starts: times whole calls and prints them as one line of JSON.

Run by `start.py`. The clock runs from the call to its return, tracing, compiling and planning included; what
is left out is the import and the building of the model, which are the same for both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> None:
    """Times the calls that the arguments name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", choices=("keras", "ours"), required=True)
    parser.add_argument("--network", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--calls", help="those to be timed, separated by commas; all of them if not given")
    options = parser.parse_args()
    wanted = options.calls.split(",") if options.calls else None
    if options.system == "ours":
        import overlap_train

        overlap_train.configure()
    from start_networks import make

    model, train, validation = make(options.network, options.steps, options.batch_size)
    import keras

    import overlap_train

    seconds: dict[str, float] = {}
    ended_s: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> None:
        if wanted is not None and name not in wanted:
            return
        start_s = time.monotonic()
        call()
        ended_s[name] = time.monotonic()
        seconds[name] = ended_s[name] - start_s

    ours = options.system == "ours"
    trainer: Any = overlap_train.Trainer(model) if ours else model
    arguments = {"batch_size": options.batch_size, "verbose": 0}

    def fit(of: Any, epochs: int, **more: Any) -> Any:
        return of.fit(*train, epochs=epochs, validation_data=validation, **arguments, **more)

    begun_s: list[float] = []
    if ours or "steady" not in (wanted or ()):
        timed("first", lambda: fit(trainer, options.epochs))
    else:
        begins = keras.callbacks.LambdaCallback(on_epoch_begin=lambda e, _: begun_s.append(time.monotonic()))
        timed("first", lambda: fit(trainer, options.epochs, callbacks=[begins]))
    if wanted is not None and "steady" in wanted:
        if ours:  # the same without a hook that would forbid running ahead
            begun_s = [
                min(s.start_s for s in trainer.recorder.spans() if s.name == "train" and s.epoch == e)
                for e in range(options.epochs)
            ]
        seconds["steady"] = (ended_s["first"] - begun_s[2]) / (options.epochs - 2)
    timed("second", lambda: fit(trainer, options.epochs))
    timed("evaluate", lambda: trainer.evaluate(*validation, **arguments))
    timed("again", lambda: trainer.evaluate(*validation, **arguments))
    timed("new trainer", lambda: fit(overlap_train.Trainer(model) if ours else model, options.epochs))
    timed("five fits", lambda: [fit(trainer, 1) for _ in range(5)])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    messages = trainer.messages if ours else []
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "messages": messages}))


if __name__ == "__main__":
    main()
