"""The systems at work: each trains a workload in its own way, and validates after each epoch.

A system is built once in its process, then trains one epoch that is not timed and the timed ones; all
work that it does before or in the first epoch (tracing, preparing arrays) is therefore outside the figures,
and all that it does again in each epoch is inside. Each timed epoch holds one training and one validation.
Where whole runs are compared, all of that is inside: only the imports are not.
"""

from __future__ import annotations

import abc
import statistics
import threading
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import overlap_train
from overlap_train.monitoring import SpanRecorder
from overlap_train.records import Span
from scripts.bench import pipelines
from scripts.bench.tasks import Examples, Task
from scripts.bench.workloads import Workload

_TUNED_STEPS_PER_EXECUTION = 50


class Stopwatch:
    """Times a window by the clock and in CPU seconds of the process; a second start forgets the first."""

    def start(self) -> None:
        self._begin_s, self._begin_cpu_s = time.monotonic(), time.process_time()

    def stop(self) -> tuple[float, float]:
        return time.monotonic() - self._begin_s, time.process_time() - self._begin_cpu_s


@dataclass(frozen=True)
class Outcome:
    """What a system's epochs came to; the fields are those of a run."""

    val_loss: float
    val_accuracy: float
    hidden_s: float | None = None
    notes: tuple[str, ...] = ()


class Contender(abc.ABC):
    """A system at work on one workload. Used from one thread."""

    def __init__(self, workload: Workload, task: Task, threads: int) -> None:
        """Prepares everything that is needed before the first epoch."""
        self.workload = workload
        self.task = task
        self.threads = threads

    @abc.abstractmethod
    def train(self, epochs: int) -> None:
        """Trains and validates for some epochs more."""

    def measure(self, epochs: int) -> tuple[float, float]:
        """Trains one epoch that is not timed, then `epochs`; returns their seconds, of clock and CPU."""
        self.train(1)
        stopwatch = Stopwatch()
        stopwatch.start()
        self.train(epochs)
        return stopwatch.stop()

    @abc.abstractmethod
    def outcome(self) -> Outcome:
        """Returns what the timed epochs came to; not timed."""


class _Fit(Contender):
    """`keras.Model.fit`, on data that a subclass prepares."""

    model: keras.Model
    fit_arguments: dict[str, Any]

    def train(self, epochs: int) -> None:
        history = self.model.fit(**self.fit_arguments, epochs=epochs, verbose=0)
        self._last = {name: values[-1] for name, values in history.history.items()}

    def outcome(self) -> Outcome:
        return Outcome(self._last["val_loss"], self._last["val_accuracy"])


class KerasNumpy(_Fit):
    """`fit` from NumPy arrays that were scaled to floats beforehand."""

    def __init__(self, workload: Workload, task: Task, threads: int) -> None:
        super().__init__(workload, task, threads)
        self.model = workload.model()
        self.fit_arguments = {
            "x": workload.scaled(task.train.x),
            "y": task.train.y,
            "batch_size": workload.batch_size,
            "validation_data": (workload.scaled(task.validation.x), task.validation.y),
        }


class KerasTfData(_Fit):
    """`fit` from a plain tf.data pipeline."""

    pipeline = staticmethod(pipelines.plain)
    steps_per_execution = 1

    def __init__(self, workload: Workload, task: Task, threads: int) -> None:
        super().__init__(workload, task, threads)
        self.model = workload.model(steps_per_execution=self.steps_per_execution)
        self.fit_arguments = {
            "x": self.pipeline(workload, task.train, threads, training=True),
            "shuffle": False,  # the pipeline does
            "validation_data": self.pipeline(workload, task.validation, threads, training=False),
        }


class KerasTfDataTuned(KerasTfData):
    """`fit` as somebody runs it who knows tf.data and Keras well."""

    pipeline = staticmethod(pipelines.tuned)
    steps_per_execution = _TUNED_STEPS_PER_EXECUTION


class Paper(Contender):
    """The scheme of paper P1 taken literally."""

    def __init__(self, workload: Workload, task: Task, threads: int) -> None:
        super().__init__(workload, task, threads)
        self.model = workload.model()
        self._data = pipelines.plain(workload, task.train, threads, training=True)
        self._validator = _CopyingValidator(workload, task.validation, threads)

    def train(self, epochs: int) -> None:
        self._validator.results.clear()
        self.model.fit(self._data, epochs=epochs, shuffle=False, verbose=0, callbacks=[self._validator])

    def outcome(self) -> Outcome:
        return Outcome(*self._validator.results[-1])


class _CopyingValidator(keras.callbacks.Callback):  # type: ignore[misc]
    """At each epoch's end: one full copy of the model for each thread, threads started anew, plain averages.

    From then on each copy belongs to its thread until that thread is joined. The copies' graphs are built
    beforehand, which is kinder than the paper's text.
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
            _scores(copy, shard)
        self._threads: list[threading.Thread] = []
        self._scores: list[tuple[float, float] | None] = []
        self.results: list[tuple[float, float]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._collect()
        for copy in self._copies:
            copy.set_weights(self.model.get_weights())
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
        self._scores[index] = _scores(self._copies[index], self._shards[index])

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


def _scores(model: keras.Model, dataset: tf.data.Dataset) -> tuple[float, float]:
    values = model.evaluate(dataset, verbose=0, return_dict=True)
    return float(values["loss"]), float(values["accuracy"])


class _FirstEpochEnd(SpanRecorder):
    """Starts a stopwatch when the first epoch has been trained; called on the thread that trained."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__()
        self._stopwatch = stopwatch

    def add(self, span: Span) -> None:
        super().add(span)
        if span.name == "train" and span.epoch == 0:
            self._stopwatch.start()  # again for each call of the epoch; the last one counts


class Overlap(Contender):
    """`overlap_train.Trainer` with `threads` validation workers.

    Its epochs are those of one `fit`. Of two, the second would begin with building its loop again; and as
    validation overlaps the epoch after it, that of the first epoch would lie in the window of the timed
    ones. So the first epoch is trained and not validated.
    """

    max_lag = 1
    _untimed = 0

    def __init__(self, workload: Workload, task: Task, threads: int) -> None:
        super().__init__(workload, task, threads)
        self._stopwatch = Stopwatch()
        self.trainer = overlap_train.Trainer(
            workload.model(from_raw=True),
            validation=overlap_train.ValidationPolicy(workers=threads, max_lag=self.max_lag),
            recorder=_FirstEpochEnd(self._stopwatch),
        )
        self.fit_arguments: dict[str, Any] = {
            "x": task.train.x,
            "y": task.train.y,
            "batch_size": workload.batch_size,
            "validation_data": (task.validation.x, task.validation.y),
        }

    def train(self, epochs: int) -> None:
        history = self.trainer.fit(**self.fit_arguments, epochs=epochs, verbose=0)
        self._last = {name: values[-1] for name, values in history.history.items()}

    def measure(self, epochs: int) -> tuple[float, float]:
        self._untimed = 1
        self.fit_arguments["validation_freq"] = list(range(2, epochs + 2))  # counted from 1
        self.train(1 + epochs)
        return self._stopwatch.stop()

    def outcome(self) -> Outcome:
        timed = self.trainer.accounts[self._untimed :]
        hidden_s = sum(account.hidden_s for account in timed)
        notes = tuple(self.trainer.messages)
        return Outcome(self._last["val_loss"], self._last["val_accuracy"], hidden_s, notes)


class OverlapSync(Overlap):
    """The same with `max_lag=0`: each epoch waits for its validation."""

    max_lag = 0
