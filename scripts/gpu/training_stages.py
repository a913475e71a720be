"""Training on a GPU under TensorFlow: P1's comparison, and the scheduler's policies on CPU and GPU (P4)."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import numpy as np

from scripts.gpu.stages import Context, Unavailable

__all__ = ["BAR", "overlap", "policies", "training_device"]

BAR = 0.75  # the time of overlap over that of fit from tf.data
_SYSTEMS = ("keras_tfdata", "keras_arrays", "overlap_in_step", "overlap")
_POLICIES = ("gpu_only", "earliest_finish", "paper")
_SPREAD = 0.05  # of the losses of P1's comparison, after ten epochs: sums on a GPU are formed in any order
_SAMPLE_S = 0.05
_SLOWER = 1.03  # of the time of gpu_only: the planner may not lose by planning


def training_device(context: Context) -> str:
    """Return "GPU:0", or "CPU:0" emulated."""
    import tensorflow as tf

    if context.emulate:
        return "CPU:0"
    if not tf.config.list_physical_devices("GPU"):
        raise Unavailable("TensorFlow sees no GPU; see the log of the stage for the library that it lacks")
    return "GPU:0"


class _Utilisation:
    """Samples how busy the GPU is, from a thread of its own; the mean is read after the end."""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-utilisation", daemon=True)

    def __enter__(self) -> _Utilisation:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def percent(self) -> float | None:
        return statistics.fmean(self._samples) if self._samples else None

    def _run(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._stop.wait(_SAMPLE_S):
                self._samples.append(float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        except Exception:  # no NVML, or no GPU: then there is no figure
            return


def overlap(context: Context) -> dict[str, Any]:
    """Train the MNIST CNN by Keras and by ours, in turn: a row for each repeat and system."""
    training_device(context)
    data, source = _mnist(context)
    epochs, repeats = (1, 1) if context.emulate else (10, 3)
    items = [(repeat, system) for repeat in range(repeats) for system in _SYSTEMS]
    for repeat, system in context.todo(items, lambda item: f"{item[1]} {item[0]}"):
        row = _train(system, data, epochs)
        context.record.add(f"{system} {repeat}", {"system": system, "epochs": epochs, "data": source} | row)
    rows = [row for row in context.record.rows if "system" in row]
    medians = {s: statistics.median(r["seconds"] for r in rows if r["system"] == s) for s in _SYSTEMS}
    losses = [row["val_loss"] for row in rows]
    spread = max(losses) - min(losses)
    wrong = [] if spread <= _SPREAD * abs(losses[0]) else [f"validation losses differ by {spread:.3g}"]
    context.record.add("losses", {"spread": spread, "wrong": wrong})
    return {"ratio": medians["overlap"] / medians["keras_tfdata"], "bar": BAR}


def _mnist(context: Context) -> tuple[Any, str]:
    """Return training and test arrays, and what they are."""
    if context.emulate:
        chance = np.random.default_rng(0)
        images = [chance.integers(0, 255, (n, 28, 28, 1), np.uint8) for n in (512, 256)]
        return [(x, chance.integers(0, 10, len(x))) for x in images], "random digits"
    from overlap_train.models.mnist_data import load_mnist

    arrays = load_mnist(download_timeout_s=0)
    return [(arrays.x_train, arrays.y_train), (arrays.x_test, arrays.y_test)], arrays.source


def _train(system: str, data: Any, epochs: int) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    from overlap_train import Trainer, ValidationPolicy
    from overlap_train.models.mnist_cnn import mnist_cnn

    keras.utils.set_random_seed(1)
    model = mnist_cnn(from_uint8=True, dropout=0.0)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    arguments: dict[str, Any] = {"epochs": epochs, "verbose": 0, "shuffle": False}
    if system == "keras_tfdata":
        train, validation = (tf.data.Dataset.from_tensor_slices(part).batch(128).prefetch(2) for part in data)
        arguments |= {"x": train, "validation_data": validation}
    else:
        (x, y), validation = data
        arguments |= {"x": x, "y": y, "batch_size": 128, "validation_data": validation}
    lag = {"overlap": 1, "overlap_in_step": 0}
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=lag[system])) if system in lag else model
    began_s = time.perf_counter()
    with _Utilisation() as busy:
        trainer.fit(**arguments)
    seconds = time.perf_counter() - began_s
    val_loss = float(model.history.history["val_loss"][-1])
    return {"seconds": seconds, "gpu_percent": busy.percent, "val_loss": val_loss}


def policies(context: Context) -> dict[str, Any]:
    """Run several networks under the scheduler's CPU-GPU policies: a row for each load and policy."""
    training_device(context)
    platform = _platform(context)
    from overlap_train.scheduling import MultiModelScheduler
    from overlap_train.scheduling.costs import CostModel
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
