"""Whole fits of networks that people train on a card: by Keras in three ways and by ours, side by side.

Each fit has a process of its own, so that one that fails takes no other along, and the peak of its memory is
its own. It trains one epoch, and then some more: what a first epoch costs beyond that is tracing.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import itertools
import math
import multiprocessing
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlap_train.monitoring.energy import gpu_joules
from scripts.gpu.driver import Row, table, wrong_rows
from scripts.gpu.stages import Context, OutOfTime, Unavailable

_MOST = ("keras", "in_step", "overlap")
_WAYS = (*_MOST, "divided", "auto", "keras_xla")
_DEEP = ("resnet50", "efficientnetb0")
_BY_XLA, _COMPILED = ("keras_xla", "keras_jax", "resident"), 3  # times as long to start
_LAG = {"in_step": 0, "replicas": 0}
_EPOCHS = {"mnist": 10}  # behind the first
_LEAST_LEFT_S = 60.0  # no fit is begun with less on a card
_COMPARED, _PAYS = ("overlap", "divided", "auto", "keras"), 0.97  # of the time in step
BUSY_PERCENT, TEN_EPOCHS_S = 80, 2.0  # the bars of "resident", the whole epoch in one call on the card
# The loop over an epoch's steps becomes a CUDA graph, and the host launches that.
_ON_THE_CARD = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE"


@dataclass(frozen=True)
class Fit:
    """One row of the page."""

    network: str
    precision: str
    data: str
    system: str

    def __str__(self) -> str:
        return f"{self.network} {self.precision} {self.data} {self.system}"

    @property
    def epochs(self) -> int:
        """The epochs behind the first."""
        return _EPOCHS.get(self.network, 3)

    @property
    def expected_s(self) -> float:
        """Seconds that it takes on an H100, estimated."""
        network = NETWORKS[self.network]
        start_s = network.start_s * (
            _COMPILED if self.system in ("keras_xla", "keras_jax", "resident") else 1
        )
        epoch_s = network.epoch_s / (2 if self.precision == "mixed_float16" else 1)
        return start_s + (1 + self.epochs) * epoch_s

    @property
    def environment(self) -> dict[str, str]:
        """What has to be set before TensorFlow or JAX is imported."""
        common = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        backend = {"KERAS_BACKEND": "jax"} if self.system == "keras_jax" else {}
        flags = {"XLA_FLAGS": _ON_THE_CARD} if self.system == "resident" else {}
        return common | backend | flags


def fits() -> Iterator[Fit]:
    """Yield what is trained within six calls, what decides most first."""
    yield Fit("mnist", "float32", "tf.data", "keras")
    for system in ("keras", "in_step", "overlap", "resident"):
        yield Fit("mnist", "float32", "arrays", system)
    yield from _of_real_size("mixed_float16", "arrays", _WAYS)
    yield from _of_real_size("float32", "arrays", _MOST)
    yield from _of_real_size("mixed_float16", "tf.data", _MOST)
    yield Fit("unet", "float32", "arrays", "replicas")  # P2: both parts of the card train


def fits_on_jax() -> Iterator[Fit]:
    """Yield what Keras on JAX trains within six calls."""
    yield Fit("mnist", "float32", "arrays", "keras_jax")
    yield from _of_real_size("mixed_float16", "arrays", ("keras_jax",))


def further_fits() -> Iterator[Fit]:
    """Yield what is left of every network in every way, which takes more calls."""
    before = {*fits(), *fits_on_jax()}
    for data, systems in (("tf.data", (*_MOST, "keras_xla")), ("arrays", (*_WAYS, "keras_jax"))):
        for precision in ("float32", "mixed_float16"):
            yield from (fit for fit in _of_real_size(precision, data, systems) if fit not in before)


def _of_real_size(precision: str, data: str, systems: Sequence[str]) -> Iterator[Fit]:
    real = [name for name in NETWORKS if name != "mnist"]
    return (Fit(network, precision, data, system) for network, system in itertools.product(real, systems))


def networks(context: Context) -> dict[str, Any]:
    """Train each network in each way: a row for each fit."""
    return _train_all(context, list(fits()))


def jax(context: Context) -> dict[str, Any]:
    """Train the same by Keras on JAX, from arrays."""
    if not _has_jax():
        raise Unavailable("JAX is not installed here")
    return _train_all(context, list(fits_on_jax()))


def further(context: Context) -> dict[str, Any]:
    """Train what is left, but for Keras on JAX where that is not installed."""
    wanted = [fit for fit in further_fits() if fit.system != "keras_jax" or _has_jax()]
    return _train_all(context, wanted[-1:] if context.quick else wanted)


def _has_jax() -> bool:
    return importlib.util.find_spec("jax") is not None


def _train_all(context: Context, wanted: Sequence[Fit]) -> dict[str, Any]:
    size = "tiny" if context.emulate else "full"
    sizes = _rehearsed(wanted) if context.quick else dict.fromkeys(wanted, size)
    for fit in context.todo(sizes, str):
        if not context.emulate and context.left_s < _LEAST_LEFT_S:
            raise OutOfTime(f"out of time at {fit}")
        context.record.add(str(fit), vars(fit) | _apart(context, fit, sizes[fit]))
    return {"fits": len(context.record.rows)}


def _rehearsed(wanted: Sequence[Fit]) -> dict[Fit, str]:
    """Return each way once, with networks that chance has chosen, and those of many layers tiny but whole."""
    chosen = random.Random(0).sample(wanted, len(wanted))
    ways = {(fit.system, fit.data): fit for fit in chosen if fit.network not in _DEEP}
    deep = {fit.network: fit for fit in chosen if fit.network in _DEEP and fit.system == "overlap"}
    return dict.fromkeys(ways.values(), "least") | dict.fromkeys(deep.values(), "tiny")


def _apart(context: Context, fit: Fit, size: str) -> dict[str, Any]:
    """Train in a process of its own; what goes wrong there is a row that says so."""
    pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    try:
        return pool.submit(_train, fit, size, context.emulate).result(max(context.left_s, 1.0))
    except concurrent.futures.TimeoutError as error:
        for process in multiprocessing.active_children():
            process.kill()
        raise OutOfTime(f"out of time in {fit}") from error
    except Exception as error:  # also of a process that was killed
        return {"wrong": [f"{type(error).__name__}: {str(error)[:300]}"]}
    finally:
        pool.shutdown(cancel_futures=True)


def _train(fit: Fit, size: str, emulate: bool) -> dict[str, Any]:
    """Train in this process, which does nothing else and has not imported Keras yet."""
    os.environ.update(fit.environment)
    network = NETWORKS[fit.network]
    parts = _divide(emulate) if fit.system in ("divided", "replicas") else ()
    import keras

    keras.config.set_dtype_policy(fit.precision)
    keras.utils.set_random_seed(1)
    with _scope(fit, parts):
        model = network.model(keras, size, scales=fit.data == "arrays")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        options = {"jit_compile": True, "steps_per_execution": 32} if fit.system == "keras_xla" else {}
        if fit.system == "keras_jax":
            options = {"steps_per_execution": 32}
        model.compile("adam", loss, metrics=["accuracy"], **options)
    trainer, arguments = _trainer(model, fit, parts), _arguments(network, fit, size)
    began_s = time.perf_counter()
    trainer.fit(**arguments, epochs=1, verbose=0)
    first_s = time.perf_counter() - began_s
    epochs, began_s = fit.epochs if size == "full" else 1, time.perf_counter()
    with Meter() as meter:
        history = trainer.fit(**arguments, epochs=epochs, verbose=0).history
    row = {"first_s": first_s, "more_s": time.perf_counter() - began_s, "more_epochs": epochs}
    val_loss = float(history["val_loss"][-1])
    wrong = [] if math.isfinite(val_loss) else [f"the validation loss is {val_loss}"]
    said = list(getattr(trainer, "messages", ()))
    versions = {"keras": keras.__version__, "backend": keras.backend.backend()}
    return row | meter.row | peak_mib() | versions | {"val_loss": val_loss, "said": said, "wrong": wrong}


def _divide(emulate: bool) -> tuple[str, ...]:
    """Return the parts of the card, the first of which goes first; emulated, two logical CPUs."""
    import tensorflow as tf

    from overlap_train.parallel import split_gpu

    if not emulate:
        total = total_mib()
        return split_gpu(2, memory_mib=[int(0.55 * total), int(0.3 * total)], priorities=(-1, 0))
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return "CPU:0", "CPU:1"


def _scope(fit: Fit, parts: Sequence[str]) -> Any:
    if fit.system != "replicas":
        return contextlib.nullcontext()
    import tensorflow as tf

    within = tf.distribute.HierarchicalCopyAllReduce()  # NCCL does not run between parts of one card
    return tf.distribute.MirroredStrategy(list(parts), cross_device_ops=within).scope()


def _trainer(model: Any, fit: Fit, parts: Sequence[str]) -> Any:
    if fit.system.startswith("keras"):
        return model
    from overlap_train import ExecutionPlan, Trainer, ValidationPolicy

    lag = _LAG.get(fit.system, 1)
    overlap = "auto" if fit.system == "auto" or not lag else "always"
    workers = list(parts[1:]) if fit.system == "divided" else 1
    plan = ExecutionPlan(jit=True) if fit.system == "resident" else ExecutionPlan()
    policy = ValidationPolicy(workers=workers, max_lag=lag, overlap=overlap)
    return Trainer(model, validation=policy, execution=plan)


def _arguments(network: Network, fit: Fit, size: str) -> dict[str, Any]:
    train, validation = network.data(size)
    batch_size = network.batch_size(size)
    if fit.data == "arrays":
        return {"x": train[0], "y": train[1], "batch_size": batch_size, "validation_data": validation}
    import tensorflow as tf

    def pipeline(rows: Rows, *, shuffle: bool) -> Any:
        data = tf.data.Dataset.from_tensor_slices(rows)
        data = data.shuffle(1024, seed=1) if shuffle else data
        if not network.words:
            data = data.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y), tf.data.AUTOTUNE)
        return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)

    return {"x": pipeline(train, shuffle=True), "validation_data": pipeline(validation, shuffle=False)}


_NAMES = ("network", "precision", "data", "system")
_FIGURES = {
    "first_s": "first epoch, s",
    "more_s": "more, s",
    "more_epochs": "epochs",
    "gpu_percent": "GPU busy, %",
    "peak_mib": "peak, MiB",
    "energy_wh": "Wh",
    "val_loss": "validation loss",
    "keras": "Keras",
}


def page_of_networks(rows: list[Row]) -> str:
    """Return all fits, and where it pays to overlap."""
    shown = {name: title for name, title in _FIGURES.items() if any(name in row for row in rows)}
    lines = [(*[row[n] for n in _NAMES], *[row.get(n, "") for n in shown], _in_step(row)) for row in rows]
    head = (*_NAMES, *shown.values(), "went in step")
    return f"{table(head, lines)}\n\n{_where_it_pays(rows)}{_resident(rows)}{wrong_rows(rows)}"


def _in_step(row: Row) -> str:
    return "yes" if any("in step" in message for message in row.get("said", ())) else ""


def _where_it_pays(rows: list[Row]) -> str:
    """Return what each way to overlap takes of the time in step, and what "auto" should have done."""
    seconds = {tuple(row[n] for n in _NAMES): row["more_s"] for row in rows if "more_s" in row}
    emulated = any(row.get("emulated") for row in rows)
    lines = []
    for network, precision, data in dict.fromkeys(key[:3] for key in seconds):
        in_step = seconds.get((network, precision, data, "in_step"))
        ways = [seconds.get((network, precision, data, way)) for way in _COMPARED]
        if in_step is None or ways[0] is None:
            continue
        ratios = [way / in_step if way else "" for way in ways]
        verdict = "none: emulated" if emulated else "pays" if ways[0] < _PAYS * in_step else "no"
        lines.append((network, precision, data, *ratios, verdict))
    head = (*_NAMES[:3], "overlap", "divided", "auto", "Keras", f"overlap pays: below {_PAYS}")
    return f"Times of the later epochs over those in step:\n\n{table(head, lines)}" if lines else ""


def _resident(rows: list[Row]) -> str:
    """Return the bars of an epoch that stays on the card."""
    for row in rows:
        if row["system"] == "resident" and "more_s" in row:
            if row.get("emulated"):
                return "\n\nThe bars of `resident`: none: emulated."
            met = row["more_s"] <= TEN_EPOCHS_S and row.get("gpu_percent", 0) >= BUSY_PERCENT
            bars = f"busy {BUSY_PERCENT}%, ten epochs in {TEN_EPOCHS_S:g} s"
            return f"\n\nThe bars of `resident` ({bars}): {'met' if met else 'missed'}."
    return ""


Rows = tuple[Any, Any]
_CLASSES = 10
_DISTINCT = 256  # rows of made-up images, which are repeated: random numbers take longer than an epoch


@dataclass(frozen=True)
class Network:
    """What is trained: images of uint8, or tokens where there are `words`."""

    shape: tuple[int, ...]  # of a row
    tiny: tuple[int, ...]
    batch: int
    rows: tuple[int, int]  # of the training and of the validation
    outputs: Callable[[Any, Any, bool], Any]  # of keras, the inputs, and whether the least will do
    start_s: float  # on an H100, estimated: a process, tracing and the choice of cuDNN's algorithms
    epoch_s: float  # the same: an epoch in float32, with its validation
    words: int = 0
    is_mask: bool = False  # whether a class belongs to each pixel

    def batch_size(self, size: str) -> int:
        return self.batch if size == "full" else 4

    def model(self, keras: Any, size: str, *, scales: bool) -> Any:
        """Return the network, uncompiled; with `scales` it takes pixels of 0 to 255."""
        shape = self.shape if size == "full" else self.tiny
        inputs = keras.Input(shape, dtype="int32" if self.words else "uint8" if scales else "float32")
        x = keras.layers.Rescaling(1 / 255)(inputs) if scales and not self.words else inputs
        logits = self.outputs(keras, x, size == "least")
        # Losses are computed in float32 under mixed_float16, too.
        return keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(logits))

    def data(self, size: str) -> tuple[Rows, Rows]:
        """Return the rows of the training and of the validation, which begin alike."""
        shape = self.shape if size == "full" else self.tiny
        chance = np.random.default_rng(0)
        y = chance.integers(0, _CLASSES, _DISTINCT, np.int32)
        of_row = y.reshape(-1, *[1] * len(shape))
        if self.words:  # the tokens of a class are those with its last digit
            x = chance.integers(0, self.words // 10, (_DISTINCT, *shape), np.int32) * 10 + of_row
        else:
            x = chance.integers(0, 128, (_DISTINCT, *shape), np.uint8) + (12 * of_row).astype(np.uint8)
        y = (x[..., :1] > 120).astype(np.int32) if self.is_mask else y
        counts = self.rows if size == "full" else (10, 6)
        first, second = ((np.resize(x, (n, *shape)), np.resize(y, (n, *y.shape[1:]))) for n in counts)
        return first, second


def _application(kind: str) -> Callable[[Any, Any, bool], Any]:
    def outputs(keras: Any, x: Any, least: bool) -> Any:
        if least:
            x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, activation="relu")(x))
            return keras.layers.Dense(_CLASSES)(keras.layers.GlobalAveragePooling2D()(x))
        options = {"weights": None, "classes": _CLASSES, "classifier_activation": None}
        return getattr(keras.applications, kind)(input_shape=x.shape[1:], **options)(x)

    return outputs


def _unet(keras: Any, x: Any, least: bool) -> Any:
    from overlap_train.models.unet import unet

    widths = (2, 4) if least else (64, 128, 256, 512, 1024)
    return unet(x.shape[1:], classes=2, widths=widths)(x)


def _transformer(keras: Any, tokens: Any, least: bool) -> Any:
    """Twelve layers as BERT's, 512 wide."""
    layers, heads, size = (1, 1, 8) if least else (12, 8, 64)
    width = heads * size
    x = keras.layers.Embedding(5000, width)(tokens)
    for _ in range(layers):
        attended = keras.layers.MultiHeadAttention(heads, size, dropout=0.1)(x, x)
        x = keras.layers.LayerNormalization()(x + attended)
        hidden = keras.layers.Dense(width)(keras.layers.Dense(4 * width, "gelu")(x))
        x = keras.layers.LayerNormalization()(x + keras.layers.Dropout(0.1)(hidden))
    return keras.layers.Dense(_CLASSES)(keras.layers.GlobalAveragePooling1D()(x))


def _mnist(keras: Any, x: Any, least: bool) -> Any:
    from overlap_train.models.mnist_cnn import mnist_cnn

    return mnist_cnn()(x)


_SMALL = (32, 32, 3)
NETWORKS = {
    "mnist": Network((28, 28, 1), (28, 28, 1), 128, (60_000, 10_000), _mnist, 12, 0.6),
    "resnet50": Network((224, 224, 3), _SMALL, 64, (3072, 1024), _application("ResNet50"), 24, 4),
    "efficientnetb0": Network(
        (224, 224, 3), _SMALL, 64, (3072, 1024), _application("EfficientNetB0"), 33, 2.5
    ),
    "unet": Network((128, 192, 3), (32, 48, 3), 32, (1024, 320), _unet, 14, 1.5, is_mask=True),
    "transformer": Network((128,), (16,), 64, (4096, 1024), _transformer, 20, 2.5, words=5000),
}


_SAMPLE_S = 0.05
_MIB = 1 << 20


class Meter:
    """Samples NVML from a thread of its own; `row` is read after the end, and empty without a card."""

    def __init__(self) -> None:
        self._busy: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-meter", daemon=True)
        self._before_j = self._joules = _counted_j()

    def __enter__(self) -> Meter:
        self._before_j = _counted_j()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._joules = _counted_j()

    @property
    def row(self) -> dict[str, float]:
        """How busy the card was, in percent, and the watt hours of all cards, idle power included."""
        busy = {"gpu_percent": statistics.fmean(self._busy)} if self._busy else {}
        if self._before_j is None or self._joules is None:
            return busy
        return busy | {"energy_wh": (self._joules - self._before_j) / 3600}

    def _run(self) -> None:
        if self._before_j is None:
            return
        import pynvml

        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not self._stop.wait(_SAMPLE_S):
            self._busy.append(float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))


def _counted_j() -> float | None:
    try:
        return gpu_joules()
    except RuntimeError:
        return None


def total_mib() -> int:
    """Return the memory of the first card."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total) // _MIB


def peak_mib() -> dict[str, Any]:
    """Return the most memory that this process's tensors took on the card at once; empty without a card."""
    if os.environ.get("KERAS_BACKEND") == "jax":
        import jax

        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    else:
        import tensorflow as tf

        names = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")]
        peaks = [tf.config.experimental.get_memory_info(name)["peak"] for name in names]
    known = [peak for peak in peaks if peak]
    return {"peak_mib": sum(known) // _MIB} if known else {}
