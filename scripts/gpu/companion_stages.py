"""The companions on a GPU under TensorFlow: the convolution, mapped buffers and the scheduler."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from scripts.gpu.overlap_stages import training_device
from scripts.gpu.stages import Context, Unavailable

__all__ = ["buffers", "operation", "policies"]

_LAYERS = ((2, 32, 48, 3, 64), (2, 16, 24, 64, 64), (1, 8, 12, 128, 256))
_SMALL_LAYERS = ((1, 8, 9, 3, 8), (1, 6, 7, 8, 8))
_BOUND = 1e-4
_POLICIES = ("gpu_only", "earliest_finish", "paper")


def operation(context: Context) -> dict[str, Any]:
    """Compare the operation with float64, between TensorFlow's own on one stream: a row for each layer."""
    device = training_device(context)
    from overlap_train.conv import library
    from overlap_train.conv.bundled import bundled_library
    from overlap_train.errors import NativeUnavailableError

    # Compiled here, unless a library has been brought along; without its kernels it is found on no GPU below.
    if not context.emulate and bundled_library() is None:
        os.environ["OVERLAP_TRAIN_CONV_CUDA"] = "1"
    try:
        library.load()
    except NativeUnavailableError as error:
        raise Unavailable(str(error).splitlines()[0]) from error
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)
    for size in context.todo(_SMALL_LAYERS if context.emulate else _LAYERS, str):
        row = _compare_layer(size, device, repeats=3 if context.emulate else 50)
        context.record.add(str(size), {"layer": list(size)} | row)
    return {"cuda": library.has_cuda(), "layers": len(context.record.rows)}


def _compare_layer(size: tuple[int, ...], device: str, *, repeats: int) -> dict[str, Any]:
    """Return errors of value and gradients, and where they were computed.

    What comes before and after the operation is TensorFlow's, and nobody waits in between: on another stream
    the operation would read what is not there yet.
    """
    import tensorflow as tf

    from overlap_train.conv import tiled_conv2d

    batch, height, width, inputs, outputs = size
    chance = np.random.default_rng(0)
    x = chance.normal(size=(batch, height, width, inputs)).astype("float32")
    filters = chance.normal(size=(3, 3, inputs, outputs)).astype("float32")
    offsets = chance.normal(size=outputs).astype("float32")

    def around(conv: Callable[..., Any], *values: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            a, f, b = values
            loss = tf.reduce_mean(tf.square(conv(a * 2.0 + 1.0, f, b)))
        return [loss, *tape.gradient(loss, values)]

    def stock(a: Any, f: Any, b: Any) -> Any:
        return tf.nn.relu(tf.nn.conv2d(a, f, 1, "SAME") + b)

    def ours(a: Any, f: Any, b: Any) -> Any:
        return tiled_conv2d(a, f, b, activation="relu", algorithm="direct")

    with tf.device("CPU:0"):
        want = [
            v.numpy() for v in around(stock, *[tf.constant(v, tf.float64) for v in (x, filters, offsets)])
        ]
    step = tf.function(lambda *values: around(ours, *values), autograph=False)
    worst, where = 0.0, ""
    with tf.device(device):
        values = [tf.identity(v) for v in (x, filters, offsets)]
        for _ in range(repeats):
            got = step(*values)
            where = got[1].device.rpartition("/device:")[2]
            for ours_v, theirs in zip(got, want, strict=True):
                norm = max(float(np.linalg.norm(theirs)), 1e-30)
                worst = max(worst, float(np.linalg.norm(ours_v.numpy() - theirs)) / norm)
    wrong = ([f"error {worst:.1e}"] if not worst < _BOUND else []) + (
        [f"on {where}"] if where != device else []
    )
    return {"repeats": repeats, "largest_error": worst, "device": where, "wrong": wrong}


def buffers(context: Context) -> dict[str, Any]:
    """Hand a `MappedBuffer` back and forth with the device, then time sharing beside a copy by size."""
    device = training_device(context)
    import tensorflow as tf

    from overlap_train import errors
    from overlap_train.zero_copy import MappedBuffer, measure_crossover

    backend: Literal["host", "cuda"] = "host" if context.emulate else "cuda"
    wrong = []
    with MappedBuffer((256, 256), backend=backend) as buffer:
        for turn in range(3 if context.emulate else 100):
            buffer.numpy()[...] = turn
            tensor = buffer.tensor(device, mode="zero_copy")
            if float(tf.reduce_sum(tensor)) != turn * 65536.0:
                wrong.append(f"turn {turn}: the device does not see what the host wrote")
            try:
                buffer.numpy()
            except errors.BufferStateError:
                pass
            else:
                wrong.append(f"turn {turn}: the host may write while the device reads")
            del tensor
    context.record.add("turns", {"turns": turn + 1, "wrong": wrong[:3]})
    if context.emulate:
        return {"crossover_bytes": "none: emulated"}
    crossover = measure_crossover(keep=False)
    for timing in crossover.timings:
        row = {"bytes": timing.size_bytes, "copy_s": timing.copy_s, "zero_copy_s": timing.zero_copy_s}
        context.record.add(f"{timing.size_bytes} bytes", row)
    return {"crossover_bytes": crossover.crossover_bytes}


def policies(context: Context) -> dict[str, Any]:
    """Run several networks under the scheduler's CPU-GPU policies: a row for each load and policy."""
    training_device(context)
    platform = _platform(context)
    from overlap_train.scheduling import MultiModelScheduler
    from overlap_train.scheduling.costs.model import CostModel
    from scripts.bench.load import GpuLoad, SpinLoad

    models, size = _networks(context)
    requests, repeats = (2, 1) if context.emulate else (16, 5)
    costs, image = CostModel(), np.ones((1, size, size, 3), np.float32)

    def load(duty: float) -> Any:
        return SpinLoad(duty) if context.emulate else GpuLoad(duty)

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
    by_key = {row["key"]: row["seconds"] for row in context.record.rows}
    ratios = {
        f"{d:.0%}": by_key[f"earliest_finish {d:.0%}"] / by_key[f"gpu_only {d:.0%}"] for d in (0.0, 0.6)
    }
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
    from overlap_train.scheduling.runtime.tensorflow_backend import tensorflow_platform

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
