"""The pools of workers that make the batches of a `PyDataset`.

Keras starts the workers of a `PyDataset` anew for each epoch, and leaves their end to the garbage collector.
That does not come while their queue is full, so they would outlive a fit that failed or was interrupted.
Keras also waits for ever for a batch whose worker process has died. Leans on `executor_fn`, `future_queue`,
`run_thread` and `running` of the adapter's `enqueuer`, and on `_pool` of `multiprocessing.pool.Pool`. The
thread that called `fit` ends the workers; a thread of TensorFlow's waits for their batches.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from multiprocessing.pool import AsyncResult, Pool, ThreadPool
from typing import Any

_LOOK_S = 1.0
_END_S = 5.0


class DataWorkers:
    """Watches the pools that the enqueuer of a `PyDatasetAdapter` starts, and ends them."""

    def __init__(self, enqueuer: Any) -> None:
        self._enqueuer = enqueuer
        self._pool: _WatchedPool | None = None
        self._over = False
        self._make = enqueuer.executor_fn
        enqueuer.executor_fn = self._start

    def _start(self, sequences: Any) -> Any:
        self._pool = None  # the last epoch's, whose processes end with it
        workers = self._make(sequences)
        if isinstance(workers, ThreadPool):
            return workers
        pool = self._pool = _WatchedPool(workers)
        if self._over:  # since the enqueuer's thread began
            pool.end()
        return pool

    def end(self) -> None:
        """End the workers, in a bounded time whatever they do. Idempotent."""
        enqueuer, thread = self._enqueuer, self._enqueuer.run_thread
        self._over, enqueuer.running = True, False
        deadline_s = time.monotonic() + _END_S
        while thread is not None and thread.is_alive() and time.monotonic() < deadline_s:
            with contextlib.suppress(queue.Empty):
                enqueuer.future_queue.get(timeout=0.05)  # the thread waits for room in the queue
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.end()


class _WatchedPool:
    """A pool whose batches are not awaited for ever. Keras closes it once it has requested them all."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._workers: list[Any] = list(pool._pool)  # type: ignore[attr-defined]  # before any is replaced
        self._ended = False

    def apply_async(self, function: Any, arguments: tuple[Any, ...]) -> _Batch:
        return _Batch(self._pool.apply_async(function, arguments), self)

    def close(self) -> None:
        self._pool.close()

    def loss(self) -> str | None:
        """Return why a batch that has not come never will, or None while it may."""
        if self._ended:
            return "the training for which a batch was made is over"
        codes = [worker.exitcode for worker in self._workers]
        failures = [code for code in codes if code] or ([] if None in codes else codes)
        if not failures:
            return None
        how = signal.Signals(-failures[0]).name if failures[0] < 0 else f"exit code {failures[0]}"
        return (
            f"a worker process of the PyDataset died ({how}) and took a batch along; SIGKILL may mean that "
            "memory ran out: pass fewer workers, or a smaller max_queue_size"
        )

    def end(self) -> None:
        """End the processes."""
        self._ended = True
        # This may wait for ever: for a lock that a worker held when it died, or for a worker that ignores it.
        ending = threading.Thread(target=self._pool.terminate, name="data-workers-end", daemon=True)
        ending.start()
        ending.join(_END_S)
        if ending.is_alive():
            alive = [process for process in self._pool._pool if process.exitcode is None]  # type: ignore[attr-defined]
            for process in alive:
                process.kill()
            for process in alive:
                process.join(_END_S)


class _Batch:
    """A batch that is being made, in place of the pool's `AsyncResult`."""

    def __init__(self, result: AsyncResult[Any], pool: _WatchedPool) -> None:
        self._result, self._pool = result, pool

    def get(self) -> Any:
        """Wait for the batch and return it; raise RuntimeError if it will not come."""
        while True:
            loss = self._pool.loss()  # read before the wait, in which a batch that was made arrives
            self._result.wait(_LOOK_S)
            if self._result.ready():
                return self._result.get()
            if loss is not None:
                raise RuntimeError(loss)
