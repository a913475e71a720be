"""One process of the comparison of starts: times whole calls and prints them as one line of JSON.

Run by `start.py`. The clock runs from the call to its return, tracing, compiling and planning included; what
is left out is the import and the building of the model, which are the same for both.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


from scripts.bench.machine import status_bytes


def main(options: argparse.Namespace) -> None:
    """Times the calls that the options name."""
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

    def fit(of: Any, epochs: int) -> Any:
        return of.fit(*train, epochs=epochs, validation_data=validation, **arguments)

    calls: dict[str, Callable[[], Any]] = {
        "first": lambda: fit(trainer, options.epochs),
        "second": lambda: fit(trainer, options.epochs),
        "evaluate": lambda: trainer.evaluate(*evaluated, **arguments),
        "again": lambda: trainer.evaluate(*evaluated, **arguments),
        "new trainer": lambda: fit(Trainer(model) if ours else model, options.epochs),
        "five fits": lambda: [fit(trainer, 1) for _ in range(5)],
    }
    seconds = {}
    for name, call in calls.items():
        if name in options.calls:
            start_s = time.monotonic()
            call()
            seconds[name] = time.monotonic() - start_s
    peak = status_bytes("VmHWM") / 2**20
    messages = trainer.messages if ours else []
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "messages": messages}))


if __name__ == "__main__":
    main(argparse.Namespace(**json.loads(sys.argv[1])))
