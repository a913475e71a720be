"""What needs TensorFlow on a GPU: the scheduler's policies on CPU and GPU (P4), and the tests."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from scripts.gpu.stages import ROOT, Context, Unavailable, output_of

_POLICIES = ("gpu_only", "earliest_finish", "paper")
_SLOWER = 1.03  # of the time of gpu_only: the planner may not lose by planning


def training_device(context: Context) -> str:
    """Return "GPU:0", or "CPU:0" emulated."""
    import tensorflow as tf

    if context.emulate:
        return "CPU:0"
    if not tf.config.list_physical_devices("GPU"):
        raise Unavailable("TensorFlow sees no GPU; see the log of the stage for the library that it lacks")
    return "GPU:0"


def policies(context: Context) -> dict[str, Any]:
    """Run several networks under the scheduler's CPU-GPU policies: a row for each load and policy."""
    training_device(context)
    platform = _platform(context)
    from overlap_train.scheduling import MultiModelScheduler
    from overlap_train.scheduling.costs import CostModel

    models, size = _networks(context)
    requests, repeats = (2, 1) if context.emulate else (16, 5)
    costs, image = CostModel(), np.ones((1, size, size, 3), np.float32)

    items = [(duty, policy) for duty in (0.0, 0.6) for policy in _POLICIES]
    for duty, policy in context.todo(items, lambda item: f"{item[1]} {item[0]:.0%}"):
        with (
            MultiModelScheduler(models, devices=platform, policy=policy, costs=costs) as scheduler,
            _gpu_load(duty, emulate=context.emulate),
        ):
            seconds = [_burst(scheduler, list(models), image, requests) for _ in range(repeats + 1)][1:]
        row = {"policy": policy, "duty": duty}
        context.record.add(f"{policy} {duty:.0%}", row | {"seconds": statistics.median(seconds)})
    by_key = {row["key"]: row["seconds"] for row in context.record.rows if "seconds" in row}
    ratios = {
        f"{d:.0%}": by_key[f"earliest_finish {d:.0%}"] / by_key[f"gpu_only {d:.0%}"] for d in (0.0, 0.6)
    }
    slow = [f"{r:.2f} of gpu_only's time at load {d}" for d, r in ratios.items() if r > _SLOWER]
    context.record.add("ratios", {"wrong": [] if context.emulate else slow})
    return {"networks": list(models), "earliest_finish_over_gpu_only": ratios}


@contextlib.contextmanager
def _gpu_load(duty: float, *, emulate: bool) -> Iterator[None]:
    """Occupy eight multiprocessors of the card for a share of the time, from a thread.

    A product of matrices of 128 rows for each of them keeps about that many busy: cuBLAS gives each tile of
    128 by 128 values of the result to one thread block.
    """
    import tensorflow as tf

    stop, device = threading.Event(), "CPU:0" if emulate else "GPU:0"
    with tf.device(device):
        left = tf.random.stateless_normal((128 if emulate else 1024, 2048), (0, 0))
        right = tf.random.stateless_normal((2048, 128), (0, 1))

    def product() -> Any:
        with tf.device(device):
            result = left
            for _ in range(8):
                result = tf.matmul(tf.matmul(result, right), right, transpose_b=True) * 1e-3
            return tf.reduce_sum(result)

    compiled = tf.function(product, autograph=False)

    def run() -> None:
        while duty and not stop.is_set():
            began_s = time.monotonic()
            compiled().numpy()
            stop.wait((time.monotonic() - began_s) * (1 - duty) / duty)

    with ThreadPoolExecutor(1, "gpu-load") as thread:
        running = thread.submit(run)
        try:
            yield
        finally:
            stop.set()
            running.result()


def _burst(scheduler: Any, names: list[str], image: Any, requests: int) -> float:
    began_s = time.perf_counter()
    futures = [scheduler.submit(name, image) for _ in range(requests) for name in names]
    for future in futures:
        future.result()
    return time.perf_counter() - began_s


def _platform(context: Context) -> Any:
    """Return CPU and GPU; emulated, two logical CPUs, one of which passes for a GPU."""
    import tensorflow as tf

    from overlap_train.scheduling import Device
    from overlap_train.scheduling.preparing import tensorflow_platform

    if not context.emulate:
        return tensorflow_platform()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tensorflow_platform([Device("CPU:0", "cpu"), Device("CPU:1", "gpu")])


def _networks(context: Context) -> tuple[dict[str, Any], int]:
    if not context.emulate:
        from scripts.bench.scheduling_measured import networks

        return networks(224), 224
    import keras

    def small() -> Any:
        layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.GlobalAveragePooling2D()]
        return keras.Sequential([keras.Input((16, 16, 3)), *layers, keras.layers.Dense(3)])

    return {"one": small(), "two": small()}, 16


_NO_TESTS = 5  # pytest's status
# Only the plugins that our tests use: others, which the machine has, warn, and warnings are errors.
_NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p pytest_timeout"}
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
_MOST_PROCESSES = 14
# What compiles C++, needs the repository's history or measures a CPU has no place here.
_LEFT_OUT = ("bench", "cli", "conv", "docs", "examples", "gpu", "rooms", "support")
_FILES = (
    *("test_bad_input", "test_differential", "test_no_leak", "test_parity"),
    *("test_real_code", "test_routing", "test_snapshot", "test_trainer"),
)


def tests(context: Context) -> dict[str, Any]:
    """Run the tests that are marked `gpu`; emulated, they are only collected."""
    training_device(context)
    _needs("pytest", "pytest_timeout")
    os.environ |= _NO_OTHER_PLUGINS
    command = [*_PYTEST, "-v", "-m", "gpu", "-rf", "tests"]  # names what a crash ends
    if context.emulate:
        command = [*command[:-1], "--collect-only", "tests/test_gpu.py"]
    status, lines = output_of(command, context)
    _keep(lines, context, "tests.txt")
    words = lines[-12:]
    failed = [line for line in words if re.match(r"FAILED|ERROR", line)]
    wrong = failed or ([f"status {status}"] if status not in (0, _NO_TESTS) else [])
    context.record.add("gpu tests", {"last_words": words, "wrong": wrong})
    return {"status": status}


def suite(context: Context) -> dict[str, Any]:
    """Run the default tests of the trainer on the card, with operations that repeat: a row for each failure.

    What holds on a CPU alone is marked `cpu_only`, and the marks have not been tried on a card: a failure is
    something to read, and not yet wrong. All that pytest prints stays in `suite.txt`. Emulated, a room and a
    file run, and the package believes that there is a GPU.
    """
    training_device(context)
    _needs("pytest", "pytest_timeout", "xdist")
    os.environ |= _NO_OTHER_PLUGINS
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # for many processes on one card
    processes = max(1, min((os.cpu_count() or 1) - 2, _MOST_PROCESSES))
    begin = [*_PYTEST, "-p", "tests.deterministic", "-m", "not nightly and not kill and not gpu", "-rfE"]
    spread = ["-p", "xdist.plugin", f"--numprocesses={processes}", "--dist=worksteal"]
    command = [*begin, "--tb=short", *spread, *_tests_of_the_trainer()]
    if context.emulate:
        command = [*begin, "-p", "tests.pretended_gpu", "tests/test_snapshot.py", "tests/validation"]
    status, lines = output_of(command, context)
    _keep(lines, context, "suite.txt")
    failed = [line.split(" ", 1)[1] for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    for name in failed:
        context.record.add(name.split(" - ")[0], {"failure": name})
    counts = [line for line in lines if re.search(r"\d+ (passed|failed|errors?)\b.* in ", line)][-1:]
    wrong = [] if counts else [f"status {status}"]  # it ended before it could count
    context.record.add("all", {"last_words": counts, "wrong": wrong})
    return {"status": status, "failed": len(failed)}


def _keep(lines: list[str], context: Context, name: str) -> None:
    (context.directory / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _tests_of_the_trainer() -> list[str]:
    tests = ROOT / "tests"
    rooms = [path for path in sorted(tests.iterdir()) if (path / "__init__.py").exists()]
    paths: list[Path] = [path for path in rooms if path.name not in _LEFT_OUT]
    return [str(path.relative_to(ROOT)) for path in (*paths, *(tests / f"{name}.py" for name in _FILES))]


def _needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"{package} is not installed here")
