"""Whether TensorFlow's persistent cache of XLA programs would shorten a start on the CPU.

    python -m scripts.bench.xla_cache --repeats 5

Each fit runs in a process of its own: without a cache, with an empty one, and with what that left behind, in
turn. The first fit has one epoch; the steady epochs come from a second fit, which compiles nothing. It is
TensorFlow's own flag, which users can set; overlap_train sets nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

__all__ = ["NETWORKS", "measure"]

NETWORKS = ("mlp", "lstm", "transformer")
"""Those that XLA compiles on a CPU, of `start_networks`."""

_STEPS, _BATCH, _EPOCHS = 30, 32, 20


def main() -> None:
    """Prints a table; the medians of paired ratios, and the error lines that TensorFlow prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--child", choices=NETWORKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    print("| network | first fit | with an empty cache | with a full one | steady with a full one | errors |")
    print("|---|---|---|---|---|---|")
    for network in options.networks:
        print(_row(network, options.repeats), flush=True)


def measure(network: str) -> dict[str, float]:
    """Returns the seconds of a first fit of one epoch and of a steady epoch, compiled by XLA."""
    import overlap_train
    from scripts.bench.start_networks import make

    overlap_train.configure()
    model, (x, y), _ = make(network, _STEPS, _BATCH)
    trainer = overlap_train.Trainer(model, execution=overlap_train.ExecutionPlan(jit=True))
    start_s = time.perf_counter()
    trainer.fit(x, y, batch_size=_BATCH, verbose=0)
    first_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    trainer.fit(x, y, batch_size=_BATCH, epochs=_EPOCHS, verbose=0)
    return {"first_s": first_s, "steady_s": (time.perf_counter() - start_s) / _EPOCHS}


def _row(network: str, repeats: int) -> str:
    first: list[float] = []
    ratios: dict[str, list[float]] = {"empty": [], "full": [], "steady": []}
    errors = 0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            without, _ = _run(network, None)
            empty, _ = _run(network, cache)
            full, printed = _run(network, cache)
        errors = max(errors, printed)
        first.append(without["first_s"])
        ratios["empty"].append(empty["first_s"] / without["first_s"])
        ratios["full"].append(full["first_s"] / without["first_s"])
        ratios["steady"].append(full["steady_s"] / without["steady_s"])
    cells = " | ".join(f"{statistics.median(values):.2f}" for values in ratios.values())
    return f"| {network} | {statistics.median(first):.2f} s | {cells} | {errors} |"


def _run(network: str, cache: str | None) -> tuple[dict[str, float], int]:
    """Returns what a process measured, and how many error lines TensorFlow printed about its cache."""
    environment = dict(
        os.environ, TF_XLA_FLAGS=f"--tf_xla_persistent_cache_directory={cache}" if cache else ""
    )
    command = [sys.executable, "-m", "scripts.bench.xla_cache", "--child", network]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr.count("XlaSerializedCacheEntry")


if __name__ == "__main__":
    main()
