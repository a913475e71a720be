"""Puts evaluation and threads together: a snapshot in, one future for each part out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import tensorflow as tf

from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.streamed_batches import BatchStream, StreamedBatches
from overlap_train._data.validation_data import ArrayBatches, Batches, Shard, split_batches, warn_if_short
from overlap_train._snapshot import Snapshot, Values
from overlap_train._validation.evaluation import ShardResult, SnapshotEvaluator
from overlap_train._validation.pending import Runner, merged_by_worker
from overlap_train._validation.pool import CallersThread, WorkerPool
from overlap_train.parallel.hosts import Hosts, SingleHost
from overlap_train.records import ShardOutcome, Span, ValidationResult

__all__ = ["ValidationRunner"]


class ValidationRunner(Runner):
    """Evaluates snapshots on one validation set with a pool of workers. Belongs to the training thread."""

    def __init__(
        self,
        evaluator: SnapshotEvaluator,
        batches: Batches,
        pool: CallersThread | WorkerPool,
        on_span: Callable[[Span], None],
        present: Values | None,
        *,
        devices: Sequence[str] = (),
        hosts: Hosts | None = None,
        least: int | None = None,
        keep_bytes: int = 0,
    ) -> None:
        self._least = least
        self._keep_bytes = keep_bytes
        self._drawn_ahead: BatchStream | None = None
        self.evaluator = evaluator
        self._batches = batches
        self._pool = pool
        self._on_span = on_span
        self._devices = devices
        self._hosts = hosts if hosts is not None else SingleHost()
        if evaluator.indivisible or isinstance(batches, StreamedBatches):
            self._hosts = SingleHost()  # each host does it all
        self.parts = 1 if evaluator.indivisible else pool.workers
        if batches.num_batches is not None:
            self.parts = max(1, min(self.parts, batches.num_batches))
        # While the training traces its first step. A function that is run meanwhile would be prepared twice.
        self._held: dict[str | None, Any] = {}
        self._copying = threading.Lock()
        self._begun = False
        self._prepared: dict[str | None, Future[None]] = {
            device: pool.submit(self._prepare, device, present)
            for device in dict.fromkeys(self._device(index) for index in range(self.parts))
        }

    def start(self, snapshot: Snapshot) -> list[Future[ShardOutcome]]:
        """Begins to evaluate a snapshot; the futures are in the order of the parts."""
        return self._start(snapshot, self._hosts)

    def _start(self, snapshot: Snapshot, hosts: Hosts) -> list[Future[ShardOutcome]]:
        stream = self._batches.begin() if isinstance(self._batches, StreamedBatches) else None
        if stream is not None and self.draws_in_order:
            stream.keep_ahead(self._keep_bytes)
            self._drawn_ahead = stream
        if isinstance(self._batches, ArrayBatches):
            _ = self._batches.held  # read here, on the training thread, which may change them later
        values, failures = snapshot.values, self._failures()
        parts = _Parts(self.parts)

        def work(index: int) -> ShardOutcome:
            start_s = time.monotonic()
            self._wait_until_prepared(index)
            device = self._device(index)
            with tf.device(device):
                part = stream or self._part(index, failures, hosts)
                result = self.evaluator.evaluate(values, part, self._held_on(device))
                found = parts.put(index, result)
                whole = self._merged(found, values) if hosts.count == 1 else None
            thread = threading.current_thread().name
            span = Span(
                "validate", thread, start_s, time.monotonic(), snapshot.epoch, snapshot.step, {"shard": index}
            )
            self._on_span(span)
            return ShardOutcome(result, span, whole)

        return [self._pool.submit(work, index) for index in range(self.parts)]

    def evaluate(self, values: Values, most: int | None = None) -> ValidationResult:
        """Evaluates values now, with all workers, and waits for the result; see `Runner.evaluate`."""
        return self._evaluated(values, most, self._hosts)

    def evaluate_alone(self, values: Values, most: int | None = None) -> ValidationResult:
        """The same on this host alone, whatever the others do."""
        return self._evaluated(values, most, SingleHost())

    def _evaluated(self, values: Values, most: int | None, hosts: Hosts) -> ValidationResult:
        self._pool.admit(None)
        if most is not None:
            if isinstance(self._batches, ArrayBatches) and self._batches.is_joined:
                raise ValueError(
                    "a callback's on_test_begin set stop_evaluating, and the batches of the validation have "
                    "been joined: set it in on_test_batch_end, which is called between them"
                )
            return self.evaluator.merge([self._evaluate_first(values, most)], values)
        futures = self._start(Snapshot(epoch=0, step=0, values=values), hosts)
        self.draw_ahead()
        outcomes = [future.result() for future in futures]
        results = [outcome.result for outcome in outcomes]
        return merged_by_worker(outcomes) or self.evaluator.merge(results, values, hosts.sum)

    @property
    def rewindable(self) -> bool:
        """Whether a validation can be made again; the batches of a generator are gone."""
        return not isinstance(self._batches, StreamedBatches) or self._batches.rewindable

    @property
    def runs_python(self) -> bool:
        """Whether the batches are drawn anew for each validation, perhaps by the user's code."""
        return isinstance(self._batches, StreamedBatches)

    @property
    def draws_in_order(self) -> bool:
        """Whether all batches are drawn before the training goes on, by `draw_ahead`."""
        return isinstance(self._batches, StreamedBatches) and self._batches.in_order

    def draw_ahead(self) -> None:
        """Draws the batches of the validation that has been started, if they are drawn in order."""
        stream, self._drawn_ahead = (
            self._drawn_ahead,
            None,
        )  # which would keep the user's iterator from ending
        if stream is not None:
            stream.draw_ahead()

    def close(self) -> None:
        """Ends what the data began; the pool is closed by its owner."""
        if isinstance(self._batches, StreamedBatches):
            self._batches.close()

    def warn(self, results: Sequence[ShardResult] = ()) -> None:
        """Warns, as Keras does, if a validation had fewer batches than were asked for, or none."""
        count = self._batches.last_count
        if results and isinstance(self._batches, StreamedBatches):
            count = sum(result.batches for result in results)  # another one may have been made since
        warn_if_short(count, self._least)
        if count and isinstance(self._batches, StreamedBatches):
            self._batches.warn_of_end()

    def merge(self, results: list[ShardResult], values: Values) -> ValidationResult:
        """Returns the metrics of the whole from those of the parts."""
        return self.evaluator.merge(results, values, self._hosts.sum)

    def _evaluate_first(self, values: Values, most: int) -> ShardResult:
        """Evaluates the first batches on the calling thread."""
        self._wait_until_prepared(0)
        if isinstance(self._batches, StreamedBatches):
            return self.evaluator.evaluate(values, self._batches.begin(most))
        return self.evaluator.evaluate(values, Shard(0, 0, min(most, self._count())))

    def _merged(self, results: list[ShardResult] | None, values: Values) -> ValidationResult | None:
        """Returns the metrics of the whole if all parts are there, to spare the training thread that."""
        if results is None:
            return None
        try:
            return self.evaluator.merge(results, values)
        except Exception:
            return None  # raised again where the results are collected

    def _device(self, index: int) -> str | None:
        """Where a part is evaluated; None leaves it to TensorFlow."""
        return self._devices[index % len(self._devices)] if self._devices else None

    def _prepare(self, device: str | None, values: Values | None) -> None:
        """Fills the cache, and warms the evaluator up with values if there are any."""
        start_s = time.monotonic()
        if isinstance(self._batches, CachedBatches):
            self._batches.fill()
        if values is not None and (device is not None or not self.evaluator.is_warm):
            with tf.device(device):
                self.evaluator.warm_up(values)
        self._on_span(Span("prepare", threading.current_thread().name, start_s, time.monotonic()))

    def _held_on(self, device: str | None) -> Any:
        """Returns the data on a device, where it is copied once."""
        with self._copying:
            if device not in self._held:
                self._held[device] = self.evaluator.held_on(device)
            return self._held[device]

    def _wait_until_prepared(self, index: int) -> None:
        # What failed there either fails again in the evaluation, and is reported, or does not matter.
        with contextlib.suppress(Exception):
            self._prepared[self._device(index)].result()

    def _failures(self) -> int:
        """Returns how often the data had failed before a validation; its preparation is the first one's."""
        begun, self._begun = self._begun, True
        return self._batches.failures if begun and isinstance(self._batches, CachedBatches) else 0

    def _part(self, index: int, failures: int, hosts: Hosts) -> Shard:
        shards = split_batches(self._count(failures), self.parts * hosts.count)
        index += self.parts * hosts.index
        return shards[index] if index < len(shards) else Shard(index, 0, 0)

    def _count(self, failures: int | None = None) -> int:
        batches = self._batches
        assert not isinstance(batches, StreamedBatches)
        return batches.fill(failures) if isinstance(batches, CachedBatches) else batches.num_batches


class _Parts:
    """The results of one validation's parts, put in by the workers in any order."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._results: list[ShardResult | None] = [None] * count

    def put(self, index: int, result: ShardResult) -> list[ShardResult] | None:
        """Adds a part and returns all of them, in their order, if it was the last to come."""
        with self._lock:
            self._results[index] = result
            found = [result for result in self._results if result is not None]
            return found if len(found) == len(self._results) else None
