"""Puts evaluation and threads together: a snapshot in, one future for each part out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any

import tensorflow as tf

from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.streamed_batches import BatchStream, StreamedBatches
from overlap_train._data.validation_data import ArrayBatches, Batches, Shard, split_batches
from overlap_train._keras import training as keras_training
from overlap_train._keras.data import warn_out_of_data
from overlap_train._snapshot import Snapshot, Values
from overlap_train._validation.evaluation import ShardResult, SnapshotEvaluator
from overlap_train._validation.pending import Runner, span_since
from overlap_train._validation.pool import WorkerPool
from overlap_train.options.threads import ways_are_fixed
from overlap_train.parallel.hosts import Hosts
from overlap_train.records import ShardOutcome, Span, ValidationResult

_FIXED_PARTS = 4  # of a process whose results must not depend on the number of its workers


@dataclass(eq=False)
class ValidationRunner(Runner):
    """Evaluates snapshots on one validation set with a pool of workers. Belongs to the training thread.

    `parts` is into how many parts the set is divided. Each device is prepared once, by a worker, with values
    that are `present` if they are needed.
    """

    evaluator: SnapshotEvaluator
    _batches: Batches
    _pool: WorkerPool
    _on_span: Callable[[Span], None]
    present: InitVar[Values | None]
    _: KW_ONLY
    devices: Sequence[str] = ()
    hosts: InitVar[Hosts | None] = None
    least: int | None = None  # batches that do for the number that was asked for
    keep_bytes: int = 0

    def __post_init__(self, present: Values | None, hosts: Hosts | None) -> None:
        batches, evaluator = self._batches, self.evaluator
        self._streamed = batches if isinstance(batches, StreamedBatches) else None
        # Each host evaluates all of what cannot be divided, and the results are compared.
        self.divides = evaluator.indivisible is None and self._streamed is None
        self._hosts: Hosts = hosts if hosts is not None and self.divides else Hosts()
        # Parts are added up, which rounds by how many there are.
        self.parts = _FIXED_PARTS if ways_are_fixed() else self._pool.workers
        if evaluator.indivisible or (keras_training.is_deterministic() and not ways_are_fixed()):
            self.parts = 1
        if self._hosts.count > 1:
            self._agree()
        if batches.num_batches is not None:
            self.parts = max(1, min(self.parts, batches.num_batches))
        # Of a generator the batches are gone, and some that are drawn anew the user's code makes.
        self.rewindable = self._streamed is None or self._streamed.rewindable
        self.draws_anew = self._streamed is not None
        self.runs_python = self._streamed is not None and self._streamed.runs_python
        self._stream_in_order: BatchStream | None = None  # of the validation that was started last
        self._data: dict[str | None, Any] = {}  # the data on each device
        self._data_lock = threading.Lock()
        # While the training traces its first step. A function that is run meanwhile would be prepared twice.
        self._preparations: dict[str | None, Future[None]] = {
            device: self._pool.submit(self._prepare, device, present)
            for device in dict.fromkeys(self._device(index) for index in range(self.parts))
        }

    def _agree(self) -> None:
        """Has all hosts divide the same batches in the same way; arrays were compared before."""
        batches, numbers = self._batches, list[float]()
        if isinstance(batches, CachedBatches):
            self._hosts.all_do(lambda: numbers.extend(batches.numbers()))
        self._hosts.check_same({"number of validation batches": batches.num_batches})
        self._hosts.check_close("has other validation data than the chief", numbers)
        self.parts = int(self._hosts.numbers([self.parts])[0, 0])

    def start(self, snapshot: Snapshot, *, alone: bool = False) -> list[Future[ShardOutcome]]:
        """Begins to evaluate a snapshot; the futures are in the order of the parts."""
        hosts = self._hosts_of(alone=alone)
        stream = None if self._streamed is None else self._streamed.begin()
        if stream is not None and self.draws_in_order:
            stream.keep_ahead(self.keep_bytes)
            self._stream_in_order = stream
        if isinstance(self._batches, ArrayBatches):
            _ = self._batches.held  # read here, on the training thread, which may change them later
        values = snapshot.values

        def work(index: int) -> ShardOutcome:
            start_s = time.monotonic()
            device = self._device(index)
            # What failed there either fails again in the evaluation, and is reported, or does not matter.
            with contextlib.suppress(Exception):
                self._preparations[device].result()
            try:
                with tf.device(device):
                    part = stream or self._part(index, hosts)
                    result = self.evaluator.evaluate(values, part, self._data_on(device))
            except BaseException:
                if stream is not None:
                    stream.give_up()  # which nobody may be left to take from, to make room for the next batch
                raise
            span = span_since(start_s, snapshot, shard=index)
            self._on_span(span)
            return ShardOutcome(result, span)

        return [self._pool.submit(work, index) for index in range(self.parts)]

    def evaluate(self, values: Values, *, alone: bool = False) -> ValidationResult:
        """Evaluates values now, with all workers, and waits for the result; see `Runner.evaluate`."""
        self._pool.admit(None)
        futures = self.start(Snapshot(epoch=0, step=0, values=values), alone=alone)
        self.draw_ahead()
        return self.merge([future.result() for future in futures], values, alone=alone)

    @property
    def draws_in_order(self) -> bool:
        """Whether all batches are drawn before the training goes on, by `draw_ahead`."""
        return self._streamed is not None and self._streamed.in_order

    def draw_ahead(self) -> None:
        """Draws the batches of the validation that has been started, if they are drawn in order."""
        stream = self._stream_in_order
        self._stream_in_order = None  # which would keep the user's iterator from ending
        if stream is not None:
            stream.draw_ahead()

    def close(self) -> None:
        """Ends what the data began; the pool is closed by its owner."""
        if self._stream_in_order is not None:
            self._stream_in_order.give_up()  # for which workers wait, and of which nothing will be drawn
        if self._streamed is not None:
            self._streamed.close()

    def warn(self, results: Sequence[ShardResult] = ()) -> None:
        """Warns, as Keras does, if a validation had fewer batches than were asked for, or none."""
        count = self._batches.last_count
        if results and self._streamed is not None:
            count = sum(result.batches for result in results)  # another one may have been made since
        if count < (self.least or 1):
            warn_out_of_data(asked=self.least is not None, known=not self._batches.finds_end)
        if count and self._streamed is not None:
            self._streamed.warn_of_end()

    def merge(
        self, outcomes: Sequence[ShardOutcome], values: Values, *, alone: bool = False
    ) -> ValidationResult:
        """Returns the metrics of the whole set."""
        results = [outcome.result for outcome in outcomes]
        return self.evaluator.merge(results, values, self._hosts_of(alone=alone).sum)

    def _hosts_of(self, *, alone: bool) -> Hosts:
        return Hosts() if alone else self._hosts

    def _device(self, index: int) -> str | None:
        """Where a part is evaluated; None leaves it to TensorFlow."""
        return self.devices[index % len(self.devices)] if self.devices else None

    def _prepare(self, device: str | None, values: Values | None) -> None:
        """Fills the cache, and warms the evaluator up with values if there are any."""
        start_s = time.monotonic()
        if isinstance(self._batches, CachedBatches):
            self._batches.fill()
        if values is not None and (device is not None or not self.evaluator.is_warm):
            with tf.device(device):
                self.evaluator.warm_up(values)
        self._on_span(Span("prepare", threading.current_thread().name, start_s, time.monotonic()))

    def _data_on(self, device: str | None) -> Any:
        """Returns the data on a device, where it is copied once."""
        with self._data_lock:
            if device not in self._data:
                self._data[device] = self.evaluator.data_on(device)
            return self._data[device]

    def _part(self, index: int, hosts: Hosts) -> Shard:
        shards = split_batches(self.evaluator.count(), self.parts * hosts.count)
        index += self.parts * hosts.index
        return shards[index] if index < len(shards) else Shard(0, 0)
