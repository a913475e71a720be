"""What a stage trains on under TensorFlow, and the scheduler's policies on CPU and GPU (P4)."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from scripts.gpu.stages import Context, Unavailable

__all__ = ["policies", "training_device"]

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
    from scripts.bench.load import GpuLoad

    models, size = _networks(context)
    requests, repeats = (2, 1) if context.emulate else (16, 5)
    costs, image = CostModel(), np.ones((1, size, size, 3), np.float32)

    def load(duty: float) -> GpuLoad:
        return GpuLoad(duty, multiprocessors=1, device="CPU:0") if context.emulate else GpuLoad(duty)

    items = [(duty, policy) for duty in (0.0, 0.6) for policy in _POLICIES]
    for duty, policy in context.todo(items, lambda item: f"{item[1]} {item[0]:.0%}"):
        with (
            MultiModelScheduler(
                models, devices=platform, policy=policy, costs=costs, profile=True
            ) as scheduler,
            load(duty) as generator,
        ):
            seconds = [_burst(scheduler, list(models), image, requests) for _ in range(repeats + 1)][1:]
        row = {"policy": policy, "duty": duty, "achieved": generator.achieved}
        context.record.add(f"{policy} {duty:.0%}", row | {"seconds": statistics.median(seconds)})
    by_key = {row["key"]: row["seconds"] for row in context.record.rows if "seconds" in row}
    ratios = {
        f"{d:.0%}": by_key[f"earliest_finish {d:.0%}"] / by_key[f"gpu_only {d:.0%}"] for d in (0.0, 0.6)
    }
    slow = [f"{r:.2f} of gpu_only's time at load {d}" for d, r in ratios.items() if r > _SLOWER]
    context.record.add("ratios", {"wrong": [] if context.emulate else slow})
    return {"networks": list(models), "earliest_finish_over_gpu_only": ratios}


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
