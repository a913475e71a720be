"""Measures what fused operations save: nodes of a training step, time to trace it, time to run it.

    python -m scripts.bench.fast_kernels --networks transformer,mobilenetv2 --repeats 3

Each network runs on Keras's operations and on ours in turn, in fresh processes;
medians. Ours are those that a model gets without a trial. "trace" is the first trace of the step,
"first call" what TensorFlow then needs until the first step is done.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from scripts.bench.start_networks import NETWORKS, make

_CHOICES = ("keras", "fast")
_ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Runs the comparison and prints its table, or one run of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--operations", action="store_true", help="also count the nodes of each kind")
    parser.add_argument("--run", choices=_CHOICES, help="one run in this process, as JSON")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(_measure(options)))
        return
    print("| network | fused | nodes | trace, s | first call, s | step, ms | step, fastest, ms |")
    print("|---|---|---|---|---|---|---|")
    for network in options.networks.split(","):
        runs: dict[str, list[dict[str, Any]]] = {choice: [] for choice in _CHOICES}
        for repeat in range(options.repeats):
            for choice in _CHOICES[:: -1 if repeat % 2 else 1]:
                runs[choice].append(_run_fresh(network, choice))
        cells = [_cell(runs, figure) for figure in ("nodes", "trace_s", "first_s", "step_ms", "fastest_ms")]
        names = ", ".join(runs["fast"][0]["names"]) or "nothing"
        print(f"| {network} | {names} | {' | '.join(cells)} |", flush=True)


def _cell(runs: dict[str, list[dict[str, Any]]], figure: str) -> str:
    before, after = (statistics.median(run[figure] for run in runs[choice]) for choice in _CHOICES)
    return f"{before:.4g} → {after:.4g} ({after / before:.2f})"


def _run_fresh(network: str, choice: str) -> dict[str, Any]:
    # The last of an argument given twice counts.
    command = [sys.executable, __file__, *sys.argv[1:], "--networks", network, "--run", choice]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=_environment())
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Traces the training step of a network and runs it."""
    import tensorflow as tf

    from overlap_train._training.kernels.choice import find_free_kernels

    network, data, _ = make(options.networks, 2, options.batch_size)
    network.compile(options.optimizer, network.loss, metrics=["accuracy"])
    network.optimizer.build(network.trainable_variables)
    batch = tuple(tf.constant(part[: options.batch_size]) for part in data)
    network._symbolic_build(data_batch=batch)
    step = network.train_step
    began = time.perf_counter()
    found = find_free_kernels(network) if options.run == "fast" else None
    if found is not None:
        step = found.around(step, None)
    graph = tf.function(step, autograph=False, reduce_retracing=False).get_concrete_function(batch)
    traced = time.perf_counter()
    graph(batch)
    called = time.perf_counter()
    times = []
    for _ in range(options.steps):
        start = time.perf_counter()
        graph(batch)
        times.append(1e3 * (time.perf_counter() - start))
    definition = graph.graph.as_graph_def()
    nodes = [node.op for node in definition.node]
    nodes += [node.op for function in definition.library.function for node in function.node_def]
    if options.operations:
        print(collections.Counter(nodes).most_common(40), file=sys.stderr)
    return {
        "names": () if found is None else found.names,
        "nodes": len(nodes),
        "trace_s": traced - began,
        "first_s": called - traced,
        "step_ms": statistics.median(times),
        "fastest_ms": min(times),
    }


if __name__ == "__main__":
    main()
