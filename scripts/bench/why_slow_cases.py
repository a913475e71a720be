"""The cases of `why_slow`, each in a process of its own: `python -m scripts.bench.why_slow_cases CASE`.

A case prints its rows as one line of JSON: what was done, then its figures with their units in their names.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import psutil
import tensorflow as tf

from overlap_train import Trainer

__all__ = ["CASES"]

Row = dict[str, Any]
_ROUNDS = 5


def validation() -> list[Row]:
    """What a validation of one row adds to an epoch, and of 256 rows."""
    x, y = _vectors(2048)
    ways: dict[str, Callable[[], Any]] = {"keras.Model.fit": _dense, "Trainer": lambda: Trainer(_dense())}
    rows = []
    for name, make in ways.items():
        fitter = make()
        figures = {}
        for label, data in (("none", None), ("1 row", (x[:1], y[:1])), ("256 rows", (x[:256], y[:256]))):
            options = {"batch_size": 256, "verbose": 0, "validation_data": data}
            fitter.fit(x, y, epochs=3, **options)
            figures[f"{label}, ms"] = (
                1e3 * _seconds(functools.partial(fitter.fit, x, y, epochs=20, **options)) / 20
            )
        rows.append({"validation in each epoch": name, **figures})
    return rows


def retracing() -> list[Row]:
    """How often a step is traced, and what that costs: new models, compiling anew, or neither."""
    x, y = _images(256)
    traces: list[int] = []

    def loss(y_true: Any, y_pred: Any) -> Any:
        traces.append(1)  # runs while the step is traced, and not again
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)

    def compiled(model: keras.Model) -> keras.Model:
        model.compile("adam", loss)
        return model

    kept = compiled(_convolutional())
    kept.optimizer.build(kept.trainable_variables)
    variables = [*kept.variables, *kept.optimizer.variables]
    first = [variable.numpy() for variable in variables]

    def put_back() -> keras.Model:
        for variable, value in zip(variables, first, strict=True):
            variable.assign(value)
        return kept

    again = _convolutional()
    ways = {
        "a new model for each fit": lambda: compiled(_convolutional()),
        "one model, compiled anew for each": lambda: compiled(again),
        "one model, its variables put back": put_back,
    }
    rows = []
    for name, make in ways.items():
        traces.clear()
        begin_s = time.perf_counter()
        for _ in range(5):
            make().fit(x, y, batch_size=32, verbose=0)
        seconds = time.perf_counter() - begin_s
        rows.append({"keras.Model.fit": name, "times traced": len(traces), "seconds for five": seconds})
    return rows


def autotune() -> list[Row]:
    """How long an iterator takes to go, with tf.data's autotuning and without."""
    images = np.zeros((24_000, 784), np.uint8)
    matrix = tf.random.normal([800, 800])

    def sums(batch: Any) -> Any:
        return tf.reduce_sum(tf.matmul(matrix, matrix)) + tf.reduce_sum(batch)

    work = tf.function(sums)
    rows = []
    for enabled in (True, False):
        options = tf.data.Options()
        options.autotune.enabled = enabled
        parallel = tf.data.AUTOTUNE if enabled else 2
        dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(24_000).batch(128)
        dataset = dataset.map(lambda batch: tf.cast(batch, tf.float32), num_parallel_calls=parallel)
        dataset = dataset.prefetch(parallel).with_options(options)
        epochs_s, ends_s = [], []
        for _ in range(8):
            begin_s = time.monotonic()
            iterator = iter(dataset)
            for batch in iterator:
                work(batch)
            end_s = time.monotonic()
            del iterator, batch
            epochs_s.append(end_s - begin_s)
            ends_s.append(time.monotonic() - end_s)
        rows.append(
            {
                "eight epochs": f"autotune.enabled = {enabled}",
                "an epoch, s (median)": statistics.median(epochs_s),
                "its end, s (median)": statistics.median(ends_s),
                "longest end, s": max(ends_s),
            }
        )
    return rows


def steps() -> list[Row]:
    """What a step costs beyond its arithmetic."""
    x, y = _vectors(12_800)

    def several() -> keras.Model:
        model = _dense()
        model.compile("adam", "mse", steps_per_execution=50)
        return model

    ways: dict[str, Callable[[], Any]] = {
        "keras.Model.fit": _dense,
        "keras.Model.fit, steps_per_execution=50": several,
        "Trainer": lambda: Trainer(_dense()),
    }
    rows = []
    for name, make in ways.items():
        fitter = make()
        fitter.fit(x, y, epochs=2, verbose=0)
        seconds = _seconds(functools.partial(fitter.fit, x, y, epochs=2, verbose=0))
        rows.append({"way": name, "a step, µs": 1e6 * seconds / 800})
    return rows


def first() -> list[Row]:
    """What the first fit costs more than the second."""
    x, y = _images(640)
    ways: dict[str, Callable[[], Any]] = {
        "keras.Model.fit": _classifier,
        "Trainer": lambda: Trainer(_classifier()),
    }
    rows = []
    for name, make in ways.items():
        figures: dict[str, list[float]] = {"first fit, s": [], "second fit, s": []}
        for _ in range(3):
            fitter = make()
            for times in figures.values():
                begin_s = time.perf_counter()
                fitter.fit(x, y, batch_size=32, validation_data=(x, y), verbose=0)
                times.append(time.perf_counter() - begin_s)
        rows.append({"way": name, **{label: statistics.median(times) for label, times in figures.items()}})
    return rows


def predict() -> list[Row]:
    """What a prediction of one row costs, and whether memory grows."""
    model, (x, _) = _dense(), _vectors(300)
    compiled = tf.function(model, jit_compile=False, autograph=False)
    ways: dict[str, Callable[[Any], Any]] = {
        "model.predict(row)": lambda row: model.predict(row, verbose=0),
        "model(row, training=False)": lambda row: model(row, training=False).numpy(),
        "model.predict_on_batch(row)": model.predict_on_batch,
        "tf.function(model)(row)": lambda row: compiled(tf.constant(row)).numpy(),
    }
    rows = []
    for name, way in ways.items():
        parts = [x[index : index + 1] for index in range(len(x))]
        for part in parts[:100]:
            way(part)
        before = psutil.Process().memory_info().rss
        begin_s = time.perf_counter()
        for part in parts[100:]:
            way(part)
        seconds = time.perf_counter() - begin_s
        grown = (psutil.Process().memory_info().rss - before) / 2**20
        rows.append({"in a loop": name, "a row, ms": 1e3 * seconds / 200, "memory of 200 rows, MiB": grown})
    seconds = _seconds(lambda: model.predict(x, batch_size=300, verbose=0))
    rows.append({"in a loop": "model.predict(all rows), once", "a row, ms": 1e3 * seconds / 300,
                 "memory of 200 rows, MiB": 0.0})  # fmt: skip
    return rows


CASES = {case.__name__: case for case in (validation, retracing, autotune, steps, first, predict)}


def _seconds(work: Callable[[], Any]) -> float:
    """Returns the median of some rounds."""
    times_s = []
    for _ in range(_ROUNDS):
        begin_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begin_s)
    return statistics.median(times_s)


def _vectors(count: int) -> tuple[Any, Any]:
    chance = np.random.default_rng(0)
    return chance.random((count, 16), np.float32), chance.random((count, 1), np.float32)


def _images(count: int) -> tuple[Any, Any]:
    chance = np.random.default_rng(0)
    return chance.random((count, 32, 32, 3), np.float32), chance.integers(0, 10, count)


def _dense() -> keras.Model:
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((16,)), *layers])
    model.compile("adam", "mse")
    return model


def _convolutional() -> keras.Model:
    layers: list[Any] = [keras.Input((32, 32, 3))]
    for channels in (8, 16, 32):
        layers += [
            keras.layers.Conv2D(channels, 3, strides=2),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
        ]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)])


def _classifier() -> keras.Model:
    model = _convolutional()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))
