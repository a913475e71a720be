"""Peak memory and time of one epoch from a memory-mapped array that is too large to be copied lightly.

Each way runs in a process of its own, over the same synthetic file, in the same order, with the same step;
the last losses must agree. The file is made for the purpose and deleted afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from scripts.bench import children
from scripts.bench.machine import status_bytes

__all__ = ["WAYS", "compare_training"]

FEATURES = 3072  # bytes of a 32x32 colour image
BATCH = 256
CLASSES = 10
# Slicing whole batches is the quickest `from_tensor_slices`. `keras_fit` and `trainer` hand the mapped
# array to `keras.Model.fit` and `Trainer.fit`; `_unlimited` lacks the limit on resident pages.
BY_HAND = ("from_tensor_slices", "from_tensor_slices_batched", "zero_copy", "zero_copy_unlimited")
BY_FIT = ("keras_fit", "trainer", "trainer_unlimited")
WAYS = BY_HAND + BY_FIT
_LIMIT_BYTES = 256 << 20
_SPARE_BYTES = 2 << 30
_COPIES = 4
_TIMEOUT_S = 1800

_Row = dict[str, Any]


def compare_training(
    data_bytes: int,
    *,
    repeats: int = 1,
    ways: Sequence[str] = WAYS,
    folder: str | None = None,
    kept: Callable[[str, Callable[[], _Row]], _Row] = lambda _, train: train(),
) -> list[_Row]:
    """Runs all ways, alternating, each in a fresh process, over a file that is made in `folder`.

    `kept` is called for each run with its name and what does it; it may return a run of an earlier call.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="overlap_train-") as place:
        path = Path(place) / "images.npy"

        def train(way: str) -> _Row:
            if not path.exists():  # where all runs are read back, none needs it
                _check_room(data_bytes, ways, folder)
                _write(path, data_bytes // (BATCH * FEATURES) * BATCH)
            return _run_child(way, path)

        runs = [
            kept(f"{way}/{repeat}", functools.partial(train, way))
            for repeat in range(repeats)
            for way in ways
        ]
    for alike in (BY_HAND, BY_FIT):
        losses = [run["loss"] for run in runs if run["way"] in alike]
        if losses and max(losses) - min(losses) > 1e-3 * max(1.0, abs(losses[0])):
            raise RuntimeError(f"the ways trained differently: losses {losses}")
    return runs


def _check_room(data_bytes: int, ways: Sequence[str], folder: str | None) -> None:
    room = shutil.disk_usage(folder or tempfile.gettempdir()).free
    if room < data_bytes + _SPARE_BYTES:
        raise OSError(
            f"{data_bytes} bytes of data need as much room on the disk and 2 GiB more; {room} are free"
        )
    available = psutil.virtual_memory().available
    copies = any(way.startswith(("from_tensor_slices", "keras_fit")) for way in ways)
    if copies and available < _COPIES * data_bytes:
        raise MemoryError(
            f"from_tensor_slices was seen to take {_COPIES} times the {data_bytes} bytes of data, and "
            f"{available} bytes are available; pass --data-gib with a smaller number"
        )


def _write(path: Path, examples: int) -> None:
    """Writes synthetic images: noise whose brightness depends on the class, so that a loss can fall."""
    chance = np.random.default_rng(0)
    noise = chance.integers(0, 128, (BATCH * 64, FEATURES), np.uint8)
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (examples, FEATURES))
    for start in range(0, examples, len(noise)):
        part = array[start : start + len(noise)]
        part[...] = noise[: len(part)]
        part += (_labels(start, len(part)) * 12).astype(np.uint8)[:, None]
    array.flush()


def _labels(start: int, count: int) -> NDArray[np.int64]:
    return (np.arange(start, start + count) * 7919) % CLASSES


def _run_child(way: str, path: Path) -> _Row:
    run: _Row = children.run_module(__name__, way, str(path), timeout_s=_TIMEOUT_S)
    print(f"{way}: {run['seconds']:.1f} s, peak {run['peak_rss_bytes'] >> 20} MiB", flush=True)
    return run


def _train(way: str, path: Path) -> _Row:
    if way not in WAYS:
        raise ValueError(f"way must be one of {WAYS}, got {way!r}")
    import tensorflow as tf

    step = _make_model(tf) if way in BY_FIT else _make_step(tf)
    start_rss = status_bytes("VmRSS")
    begin = time.perf_counter()
    images = np.load(path, mmap_mode="r")
    labels = _labels(0, len(images))
    if way in BY_FIT:
        loss = _by_fit(step, images, labels, way)
    elif way.startswith("zero_copy"):
        loss = _by_zero_copy(tf, step, images, labels, limited=way == "zero_copy")
    else:
        loss = _by_dataset(tf, step, images, labels, batched=way.endswith("batched"))
    return {
        "way": way,
        "data_bytes": images.nbytes,
        "seconds": time.perf_counter() - begin,  # from opening the file; tracing included, imports not
        "peak_rss_bytes": status_bytes("VmHWM"),
        "start_rss_bytes": start_rss,
        "loss": loss,  # of the last step; of the whole epoch for those that call `fit`
    }


def _make_step(tf: Any) -> Callable[[Any, Any], Any]:
    """Returns a step of plain gradient descent on a small network; the same for each way."""
    chance = tf.random.Generator.from_seed(1)
    hidden = tf.Variable(chance.normal((FEATURES, 32), stddev=0.02))
    output = tf.Variable(chance.normal((32, CLASSES), stddev=0.1))

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            pixels = tf.cast(images, tf.float32) / 255.0 - 0.4
            logits = tf.nn.relu(pixels @ hidden) @ output
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip((hidden, output), tape.gradient(loss, (hidden, output)), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    return step


def _by_zero_copy(
    tf: Any,
    step: Callable[[Any, Any], Any],
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    limited: bool,
) -> float:
    from overlap_train import zero_copy

    examples, targets = zero_copy.as_tensor(images, mode="zero_copy"), zero_copy.as_tensor(labels)

    def epoch() -> Any:
        loss = tf.constant(0.0)
        for index in tf.range(len(images) // BATCH):
            part = slice(index * BATCH, (index + 1) * BATCH)
            loss = step(tf.ensure_shape(examples[part], (BATCH, FEATURES)), targets[part])
        return loss

    limit = zero_copy.ResidentLimit(images, limit_bytes=_LIMIT_BYTES) if limited else contextlib.nullcontext()
    with limit:
        return float(tf.function(epoch)())


def _by_dataset(
    tf: Any,
    step: Callable[[Any, Any], Any],
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    batched: bool,
) -> float:
    if batched:
        arrays = images.reshape(-1, BATCH, FEATURES), labels.reshape(-1, BATCH)
        dataset = tf.data.Dataset.from_tensor_slices(arrays)
    else:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH, drop_remainder=True)
    options = tf.data.Options()
    # Its thread can stall the end of an epoch: docs/results/archive/2026-11-24-epochs.md.
    options.autotune.enabled = False
    dataset = dataset.prefetch(2).with_options(options)

    def epoch() -> Any:
        loss = tf.constant(0.0)
        for examples, targets in dataset:
            loss = step(examples, targets)
        return loss

    return float(tf.function(epoch)())


def _make_model(tf: Any) -> Any:
    """Returns the same network as a Keras model."""
    keras = tf.keras
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((FEATURES,), dtype="uint8"),
        keras.layers.Rescaling(1 / 255.0, -0.4),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(CLASSES),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _by_fit(model: Any, images: NDArray[np.uint8], labels: NDArray[np.int64], way: str) -> float:
    import overlap_train
    from overlap_train import zero_copy

    limit: Any = contextlib.nullcontext()
    if way == "trainer":
        limit = zero_copy.ResidentLimit(images, limit_bytes=_LIMIT_BYTES)
    fit = model.fit if way == "keras_fit" else overlap_train.Trainer(model).fit
    with limit:
        history = fit(images, labels, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    return float(history.history["loss"][0])


if __name__ == "__main__":
    print(json.dumps(_train(sys.argv[1], Path(sys.argv[2]))))
