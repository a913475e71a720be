"""Measured here: several networks at once on the CPU, ours beside what a user would write.

Each contender runs in a process of its own, since TensorFlow's threads are set once for a process.
The processes live side by side and take turns, so that a slow minute of the machine hits all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scripts.bench.children import ENDS_WITH_PARENT

__all__ = ["CONTENDERS", "DEFAULT", "measure"]

CONTENDERS = {
    "one_after_another": "one thread, pre-traced functions, TensorFlow's default threads",
    "thread_per_network": "a thread for each network, pre-traced functions, TensorFlow's default threads",
    "thread_per_network_batched": "the same, each thread taking its own requests four at a time",
    "ours_plain": "MultiModelScheduler, one intra-op thread for each function, no batching",
    "ours": "MultiModelScheduler, the same, requests that wait anyway batched up to four",
}
DEFAULT = tuple(CONTENDERS)
_MAX_BATCH = 4


def networks(size: int) -> dict[str, Any]:
    """The paper's four networks, for `[N, size, size, 3]`."""
    import keras

    from overlap_train.models.alexnet import alexnet

    shape = (size, size, 3)
    applications = keras.applications
    return {
        "ResNet152": applications.ResNet152(weights=None, input_shape=shape),
        "VGG16": applications.VGG16(weights=None, input_shape=shape),
        "DenseNet201": applications.DenseNet201(weights=None, input_shape=shape),
        "AlexNet": alexnet(shape),
    }


def measure(*, size: int, requests: int, repeats: int, contenders: Sequence[str] = DEFAULT) -> dict[str, Any]:
    """Runs `requests` single images through each network, `repeats` times for each contender in turn.

    Returns by contender the seconds of each repeat, requests per second from the median, and the scheduler's
    overhead.
    """
    children = {name: _start(name, size, requests) for name in contenders}
    try:
        for child in children.values():
            _read(child)
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
        for _ in range(repeats):
            for name, child in children.items():
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
                rows[name].append(_read(child))
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    return {name: _summary(name, row, requests) for name, row in rows.items()}


def _summary(name: str, rows: list[dict[str, Any]], requests: int) -> dict[str, Any]:
    seconds = [row["seconds"] for row in rows]
    return {
        "what": CONTENDERS[name],
        "marked": "measured here",
        "seconds": seconds,
        "cpu_seconds": [row["cpu_seconds"] for row in rows],
        "requests_per_s": 4 * requests / float(np.median(seconds)),
        "overhead": max((row.get("overhead", 0.0) for row in rows), default=0.0),
        "checksum": rows[-1]["checksum"],
    }


def _start(name: str, size: int, requests: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.bench.scheduling_measured", name, str(size), str(requests)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        preexec_fn=ENDS_WITH_PARENT,
    )


def _read(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            return result
    raise RuntimeError(f"a contender ended with code {child.wait()}; see its messages above")


def _traced(models: dict[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """A compiled function for each network, called once so that it is optimised."""
    from overlap_train.scheduling import Device, Platform
    from overlap_train.scheduling.models import split_model
    from overlap_train.scheduling.preparing import compile_segments, profile_layers
    from overlap_train.scheduling.segments import merge_layers

    platform = Platform((Device("CPU:0"),))
    functions: dict[str, Callable[[Any], Any]] = {}
    for name, model in models.items():
        split = split_model(model, name=name)
        whole = merge_layers(split.graph, [range(len(split.graph))])
        graph = compile_segments(split, whole, platform)
        profile_layers(graph, platform, repeats=2)
        run = graph.layers[0].runs["CPU:0"]
        functions[name] = lambda x, run=run: run((x,))[0].numpy()  # type: ignore[misc]
    return functions


def _baseline(name: str, models: dict[str, Any], images: Any, requests: int) -> Callable[[], dict[str, Any]]:
    import tensorflow as tf

    functions = _traced(models)
    batch = _MAX_BATCH if name.endswith("_batched") else 1
    tensor = tf.constant(np.repeat(images, batch, axis=0))
    sums: dict[str, float] = {}

    def network(key: str) -> None:
        for _ in range(0, requests, batch):
            sums[key] = float(functions[key](tensor)[0, :10].sum())

    def one_after_another() -> dict[str, Any]:
        for key in functions:
            network(key)
        return {"checksum": sum(sums.values())}

    def thread_per_network() -> dict[str, Any]:
        threads = [threading.Thread(target=network, args=(key,)) for key in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"checksum": sum(sums.values())}

    return one_after_another if name.startswith("one") else thread_per_network


def _ours(name: str, models: dict[str, Any], images: Any, requests: int) -> Callable[[], dict[str, Any]]:
    from overlap_train.scheduling import MultiModelScheduler

    scheduler = MultiModelScheduler(
        models,
        max_batch=1 if name == "ours_plain" else _MAX_BATCH,
        max_pending=2 * requests,
    )

    def once() -> dict[str, Any]:
        before = scheduler.statistics()
        futures = [(key, scheduler.submit(key, images)) for _ in range(requests) for key in models]
        sums = {key: float(future.result()[0, :10].sum()) for key, future in futures}
        after = scheduler.statistics()
        busy_s, own_s = (
            sum(getattr(after.devices[d], field) - getattr(before.devices[d], field) for d in after.devices)
            for field in ("busy_s", "overhead_s")
        )
        return {"checksum": sum(sums.values()), "overhead": own_s / busy_s}

    return once


def _child(name: str, size: int, requests: int) -> None:
    import keras
    import tensorflow as tf

    if name.startswith("ours"):
        tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    models = networks(size)
    images = np.random.default_rng(0).random((1, size, size, 3), dtype=np.float32)
    make = _ours if name.startswith("ours") else _baseline
    once = make(name, models, images, requests)
    once()
    print(json.dumps({"ready": name}), flush=True)
    for _ in sys.stdin:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        result = once()
        result |= {"seconds": time.perf_counter() - began_s, "cpu_seconds": time.process_time() - began_cpu_s}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
