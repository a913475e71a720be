"""Training on a GPU: P1's comparison, a divided card, and snapshots while XLA donates buffers."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.gpu.stages import Context, Unavailable

__all__ = ["BAR", "divided", "donation", "overlap", "training_device"]

BAR = 0.75  # the time of overlap over that of fit from tf.data
_SYSTEMS = ("keras_tfdata", "keras_arrays", "overlap_in_step", "overlap")
_TOLERANCE = 1e-3  # of validation losses: sums on a GPU are formed in any order
_SPREAD = 0.05  # of the losses of P1's comparison, after ten epochs
_SAMPLE_S = 0.05


def training_device(context: Context) -> str:
    """Return "GPU:0", or "CPU:0" emulated.

    Raises:
        Unavailable: TensorFlow sees no GPU.
    """
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
        sizes = (512, 256)
        images = [chance.integers(0, 255, (n, 28, 28, 1), np.uint8) for n in sizes]
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
    (x, y), validation = data
    arguments: dict[str, Any] = {
        "epochs": epochs,
        "verbose": 0,
        "validation_data": validation,
        "shuffle": False,
    }
    if system == "keras_tfdata":
        pipeline = [tf.data.Dataset.from_tensor_slices(part).batch(128).prefetch(2) for part in data]
        arguments |= {"x": pipeline[0], "validation_data": pipeline[1]}
    else:
        arguments |= {"x": x, "y": y, "batch_size": 128}
    lag = {"overlap": 1, "overlap_in_step": 0}
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=lag[system])) if system in lag else model
    began_s = time.perf_counter()
    with _Utilisation() as busy:
        trainer.fit(**arguments)
    seconds = time.perf_counter() - began_s
    val_loss = float(model.history.history["val_loss"][-1])
    return {"seconds": seconds, "gpu_percent": busy.percent, "val_loss": val_loss}


def divided(context: Context) -> dict[str, Any]:
    """Train on one part of a card and validate on another; the numbers must be those of Keras."""
    import tensorflow as tf

    from overlap_train.parallel import split_gpu

    if context.emulate:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        parts: tuple[str, ...] = ("CPU:0", "CPU:1")
    else:
        if not tf.config.list_physical_devices("GPU"):
            raise Unavailable("TensorFlow sees no GPU")
        parts = split_gpu(2, memory_mib=4096, priorities=(-1, 0))
    differences = _against_keras(jit_compile=False, devices=parts[1:])
    context.record.add("divided", {"parts": list(parts), "differences": differences} | _judged(differences))
    return differences


def donation(context: Context) -> dict[str, Any]:
    """Take snapshots between steps that XLA compiles, and look whether a later step writes into them."""
    training_device(context)
    kept = _snapshots_that_changed(context)
    context.record.add(
        "snapshots", {"steps": kept[1], "changed": kept[0], "wrong": ["a snapshot"] * (kept[0] > 0)}
    )
    differences = _against_keras(jit_compile=True, devices=None)
    context.record.add("fit", {"differences": differences} | _judged(differences))
    return {"changed": kept[0], **differences}


def _judged(differences: dict[str, float]) -> dict[str, Any]:
    return {"wrong": [name for name, size in differences.items() if not size <= _TOLERANCE]}


def _snapshots_that_changed(context: Context) -> tuple[int, int]:
    """Return how many snapshots of `steps` differ from what they were when they were taken, and `steps`."""
    model, (x, y) = _small_model(jit_compile=True), _small_data(64, 0)
    model.train_on_batch(x, y)  # builds the optimizer's variables
    variables = [v.value for v in (*model.variables, *model.optimizer.variables)]
    steps, taken = 5 if context.emulate else 50, []
    for _ in range(steps):
        taken.append(([v.read_value() for v in variables], [v.numpy().copy() for v in variables]))
        model.train_on_batch(x, y)
    changed = 0
    for snapshot, copies in taken:
        changed += any(not np.array_equal(s.numpy(), c) for s, c in zip(snapshot, copies, strict=True))
    return changed, steps


def _against_keras(*, jit_compile: bool, devices: tuple[str, ...] | None) -> dict[str, float]:
    """Return the largest differences of history and weights between Keras's fit and ours."""
    from overlap_train import Trainer, ValidationPolicy

    expected, actual = (_small_model(jit_compile=jit_compile) for _ in range(2))
    (x, y), validation = _small_data(203, 0), _small_data(91, 1)
    arguments: dict[str, Any] = {"batch_size": 32, "epochs": 6, "validation_data": validation, "verbose": 0}
    histories = []
    for model, fit in (
        (expected, expected.fit),
        (actual, Trainer(actual, validation=ValidationPolicy(workers=2, devices=devices)).fit),
    ):
        _seed()
        fit(x, y, **arguments)
        histories.append(model.history.history)
    losses = [np.array([h[k] for k in ("loss", "val_loss")], np.float64) for h in histories]
    pairs = zip(expected.get_weights(), actual.get_weights(), strict=True)
    return {
        "losses": float(np.max(np.abs(losses[0] - losses[1]))),
        "weights": float(max(np.max(np.abs(a - b)) for a, b in pairs)),
    }


def _seed() -> None:
    import keras

    keras.utils.set_random_seed(3)


def _small_data(rows: int, seed: int) -> tuple[Any, Any]:
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(rows, 12)).astype("float32")
    return x, np.argmax(x[:, :4] + 0.3 * chance.normal(size=(rows, 4)), axis=1)


def _small_model(*, jit_compile: bool) -> Any:
    import keras

    keras.utils.set_random_seed(7)
    layers: Callable[..., Any] = keras.layers.Dense
    model = keras.Sequential([keras.Input((12,)), layers(16, activation="relu"), layers(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=jit_compile)
    return model
