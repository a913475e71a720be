"""Data parallelism on paper: the time of a step on n workers, measured on a few and predicted to many.

    python -m scripts.bench.scaling --workers=1,2,4

A step on n workers that share a global batch takes

    t(n) = t_fixed + t_rows / n + ring(gradient bytes, n) + ring(output bytes, n),
    ring(b, n) = 2 (n - 1) / n * b / bandwidth + 2 (n - 1) * latency          (ring all-reduce),

where t_fixed + t_rows is the step on one worker. The measured workers are processes of one machine: they
share its cores, so their compute does not get shorter, and the link is fitted to the all-reduces of a small
and a large tensor between them. Everything beyond them is marked as predicted: for links
that are given (--gbit, --latency_us), with as many rows on each worker as the single one had.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

__all__ = ["Link", "main", "ring_s", "step_s"]

_PREDICTED = (8, 16, 64, 256, 1024)
_SMALL, _LARGE = 1_024, 4_194_304


@dataclass(frozen=True)
class Link:
    """What connects two workers.

    Attributes:
        bytes_per_s: bandwidth of one direction.
        latency_s: of one message.
    """

    bytes_per_s: float
    latency_s: float


def ring_s(size_bytes: float, workers: int, link: Link) -> float:
    """Returns the seconds of a ring all-reduce: 2 (n - 1) messages of an n-th of the bytes each."""
    messages = 2 * (workers - 1)
    return messages * (size_bytes / workers / link.bytes_per_s + link.latency_s)


def step_s(compute_s: float, gradient_bytes: float, output_bytes: float, workers: int, link: Link) -> float:
    """Returns the seconds of a step whose workers each compute for so long."""
    return compute_s + ring_s(gradient_bytes, workers, link) + ring_s(output_bytes, workers, link)


def fit_link(small_s: float, large_s: float, workers: int = 2) -> Link:
    """Returns the link that explains the times of a small and of a large all-reduce."""
    messages = 2 * (workers - 1)
    bytes_per_s = messages * (_LARGE - _SMALL) / workers / max(large_s - small_s, 1e-9)
    latency_s = max(small_s / messages - _SMALL / workers / bytes_per_s, 0.0)
    return Link(bytes_per_s, latency_s)


def _measure(rows: int, steps: int) -> dict[str, Any]:
    """Is one worker: times training steps and two all-reduces; runs in a process of its own."""
    import contextlib

    import keras
    import numpy as np
    import tensorflow as tf

    import overlap_train
    from overlap_train.models.mnist_cnn import mnist_cnn

    strategy = None
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(0)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = mnist_cnn()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    plan = overlap_train.ExecutionPlan(loop="in_memory", jit=False, batch_splits=1, steps_per_call=steps)
    trainer = overlap_train.Trainer(model, execution=plan)
    rng = np.random.default_rng(0)
    x, y = rng.random((rows * steps, 28, 28, 1), "float32"), rng.integers(0, 10, rows * steps)
    trainer.fit(x, y, batch_size=rows, epochs=4, verbose=0)
    result = {
        "step_s": min(account.trained_s for account in trainer.accounts[1:]) / steps,
        "gradient_bytes": 4 * model.count_params(),
        "output_bytes": 4 * 10 * rows,
    }
    if strategy is not None:
        result |= {
            name: _all_reduce_s(strategy, size) for name, size in (("small", _SMALL), ("large", _LARGE))
        }
    return result


def _all_reduce_s(strategy: Any, size_bytes: int, repeats: int = 20) -> float:
    """Returns the least seconds of an all-reduce."""
    import tensorflow as tf

    def reduce() -> Any:
        value = tf.zeros([size_bytes // 4])
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

    function = tf.function(lambda: strategy.run(reduce), autograph=False)
    times = []
    for _ in range(repeats):
        start_s = time.monotonic()
        function()
        times.append(time.monotonic() - start_s)
    return min(times[2:])


def _run_workers(count: int, rows: int, steps: int) -> dict[str, Any]:
    """Returns what the first of so many local workers measured."""
    listeners = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    command = [sys.executable, "-m", "scripts.bench.scaling", "--worker"]
    command += [f"--rows={rows}", f"--steps={steps}"]
    processes = []
    for index in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        if count > 1:
            environment["TF_CONFIG"] = json.dumps(config)
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{count} local workers did not end well")
    measured: dict[str, Any] = json.loads(outputs[0].strip().splitlines()[-1])
    return measured


def main(arguments: list[str] | None = None) -> None:
    """Measures, predicts and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="1,2,4", help="numbers of local workers to measure")
    parser.add_argument("--rows", type=int, default=128, help="rows of the batch of one worker")
    parser.add_argument("--steps", type=int, default=20, help="training steps in an epoch")
    parser.add_argument("--gbit", type=float, default=25.0, help="bandwidth of the links of the prediction")
    parser.add_argument("--latency_us", type=float, default=20.0, help="latency of those links")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(_measure(options.rows, options.steps)))
        return
    counts = sorted({int(count) for count in options.workers.split(",")} | {1})
    print(f"mnist_cnn, a global batch of {options.rows} rows shared by local workers, {os.cpu_count()} cores")
    measured = {count: _run_workers(count, options.rows, options.steps) for count in counts}
    _print_measured(measured)
    link = Link(options.gbit * 1e9 / 8, options.latency_us * 1e-6)
    print(
        f"predicted, {options.rows} rows on each worker, {options.gbit:g} Gbit/s, {options.latency_us:g} us:"
    )
    one = measured[1]
    for count in _PREDICTED:
        seconds = step_s(one["step_s"], one["gradient_bytes"], one["output_bytes"] * count, count, link)
        efficiency = one["step_s"] / seconds
        print(f"{count:6d} workers  {seconds * 1e3:9.2f} ms a step  efficiency {efficiency:.2f}  (predicted)")


def _print_measured(measured: dict[int, dict[str, Any]]) -> None:
    """Prints measured steps beside the model's, whose link comes from the all-reduces that were measured."""
    one = measured[1]
    for count, result in measured.items():
        line = f"{count:6d} workers  {result['step_s'] * 1e3:9.2f} ms a step (measured)"
        if count > 1:
            link = fit_link(result["small"], result["large"], count)
            # All workers compute on the same cores, so together they take as long as one.
            model_s = step_s(one["step_s"], result["gradient_bytes"], result["output_bytes"], count, link)
            line += f"  {model_s * 1e3:9.2f} ms (model)  link {link.bytes_per_s / 1e6:.0f} MB/s"
            line += f" {link.latency_s * 1e6:.0f} us"
        print(line)


if __name__ == "__main__":
    main()
