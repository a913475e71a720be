"""Validation as paper P1 describes it, taken literally, and what its model copies cost beside a snapshot.

The training thread owns the model and, at an epoch's end, copies its weights into one model for each
validation thread; from then on each copy belongs to its thread until that thread is joined.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scripts.bench import pipelines
from scripts.bench.tasks import Examples
from scripts.bench.workloads import Workload

__all__ = ["CopyingValidator", "copy_seconds", "scores"]


def scores(model: keras.Model, dataset: tf.data.Dataset) -> tuple[float, float]:
    """Returns loss and accuracy of a model on a dataset."""
    values = model.evaluate(dataset, verbose=0, return_dict=True)
    return float(values["loss"]), float(values["accuracy"])


class CopyingValidator(keras.callbacks.Callback):  # type: ignore[misc]
    """At each epoch's end: one full copy of the model for each thread, threads started anew, plain averages.

    The copies' graphs are built once, beforehand. That is kinder than the paper's text, and the reason
    why its time for copying is the weights' alone.

    Attributes:
        results: loss and accuracy of each epoch so far: the mean over the threads, each counted alike.
        copy_s: seconds that the training thread spent copying at each epoch's end.
    """

    def __init__(self, workload: Workload, validation: Examples, threads: int) -> None:
        super().__init__()
        parts = np.array_split(np.arange(len(validation)), threads)
        self._shards = [
            pipelines.plain(
                workload, Examples(validation.x[part], validation.y[part]), threads, training=False
            )
            for part in parts
        ]
        self._copies = [workload.model() for _ in self._shards]
        for copy, shard in zip(self._copies, self._shards, strict=True):
            scores(copy, shard)
        self._threads: list[threading.Thread] = []
        self._scores: list[tuple[float, float] | None] = []
        self.results: list[tuple[float, float]] = []
        self.copy_s: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._collect()
        start_s = time.monotonic()
        _copy_weights(self.model, self._copies)
        self.copy_s.append(time.monotonic() - start_s)
        self._scores = [None] * len(self._copies)
        self._threads = [
            threading.Thread(target=self._validate, args=(index,), name=f"paper-{epoch}-{index}")
            for index in range(len(self._copies))
        ]
        for thread in self._threads:
            thread.start()

    def on_train_end(self, logs: Any = None) -> None:
        self._collect()

    def _validate(self, index: int) -> None:
        self._scores[index] = scores(self._copies[index], self._shards[index])

    def _collect(self) -> None:
        """Waits for the threads of the epoch before and averages what they found."""
        for thread in self._threads:
            thread.join()
        if self._threads:
            found = [score for score in self._scores if score is not None]
            if len(found) < len(self._scores):
                raise RuntimeError(
                    "a validation thread of the paper's scheme failed; see its traceback above"
                )
            losses, accuracies = zip(*found, strict=True)
            self.results.append((statistics.fmean(losses), statistics.fmean(accuracies)))
        self._threads = []


def copy_seconds(workload: Workload, workers: Sequence[int], *, repeats: int = 5) -> list[float]:
    """Returns, for each number of workers, the median seconds of copying the weights into so many models."""
    model, copies = workload.model(), [workload.model() for _ in range(max(workers))]
    medians_s = []
    for count in workers:
        times_s = []
        for _ in range(repeats):
            start_s = time.monotonic()
            _copy_weights(model, copies[:count])
            times_s.append(time.monotonic() - start_s)
        medians_s.append(statistics.median(times_s))
    return medians_s


def _copy_weights(model: keras.Model, copies: Sequence[keras.Model]) -> None:
    for copy in copies:
        copy.set_weights(model.get_weights())
