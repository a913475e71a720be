"""The worker pool: threads that run jobs in the order in which they were submitted. It knows no Keras.

The training thread submits and collects, and says how many jobs may run meanwhile. It may hold new ones back
for a moment while it prepares its next call: workers that begin just then would share Python's lock and the
cores with it. Each worker takes one job at a time, puts its result or its exception into a future and drops
every reference to it. Workers are daemons, because a job stuck in the user's data cannot be ended from
outside and must not keep the interpreter alive.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, TypeVar

from overlap_train._support.closing import Closing
from overlap_train._support.threads import leaves_nothing, start
from overlap_train.errors import ValidationTimeoutError

J = TypeVar("J")


class ShardQueue(Generic[J]):
    """A queue of jobs with a limit to those under way. Thread-safe: one condition guards everything.

    A worker that is woken takes Python's lock from the training thread, so only one at a time is woken: when
    it takes a job, it wakes the next if there is more to take. One that has done its job comes for another.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[J] = deque()
        self._under_way = 0
        self._limit: int | None = None
        self._hold_until_s = 0.0
        self._waking = False  # whether a worker has been woken and has not come yet
        self._timing = 0  # workers that wait for the hold to pass
        self._closed = False

    def put(self, job: J) -> None:
        """Appends a job. Raises RuntimeError if the queue has been closed."""
        with self._changed:
            if self._closed:
                raise RuntimeError("this WorkerPool is closed")
            self._jobs.append(job)
            self._wake_one()

    def take(self) -> J | None:
        """Waits for a job that may begin and returns it; `done` must follow. None: there will be no more."""
        with self._changed:
            while True:
                self._waking = False
                hold_s, available = self._hold_s(), self._available
                if available and not hold_s:
                    self._under_way += 1
                    job = self._jobs.popleft()
                    self._wake_one()
                    return job
                if self._closed and not self._jobs:
                    return None
                self._timing += available
                self._changed.wait(hold_s if available else None)
                self._timing -= available

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        with self._changed:
            return not self._under_way and not self._jobs

    def done(self) -> None:
        """Says that a job which was taken has ended, and that its worker will take again."""
        with self._changed:
            self._under_way -= 1

    def admit(self, most: int | None, *, after_s: float = 0.0) -> None:
        """Lets waiting jobs begin, so that up to `most` are under way; None: as many as there are workers.

        Jobs under way are not stopped.
        """
        with self._changed:
            self._limit = most
            self._hold_until_s = min(self._hold_until_s, time.monotonic() + after_s)
            if self._available:
                self._wake()  # even if a worker waits for the hold to pass, since the time may have changed

    def hold(self, seconds: float) -> None:
        """Lets no job begin before `admit`, or before this time has passed."""
        with self._changed:
            self._hold_until_s = time.monotonic() + seconds

    def end(self) -> list[J]:
        """Lets no further job begin, takes out those that wait, and sends the workers home."""
        with self._changed:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        return waiting

    @property
    def _available(self) -> bool:
        """Whether a job waits and the limit leaves room for it."""
        return bool(self._jobs) and (self._limit is None or self._under_way < self._limit)

    def _wake_one(self) -> None:
        """Wakes a worker for what may begin, unless one waits for the time at which it may."""
        if self._available and not (self._timing and self._hold_s()):
            self._wake()

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._changed.notify()

    def _hold_s(self) -> float:
        """Returns the seconds for which jobs are still to be held back."""
        return max(0.0, self._hold_until_s - time.monotonic()) if self._hold_until_s else 0.0


T = TypeVar("T")

_CLOSE_S = 10.0
_LATE_S = 1.0  # for jobs that have been waited for in vain


class _Job(Generic[T]):
    def __init__(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self.future: Future[T] = Future()
        work: list[Any] = [function, arguments]
        self._work = work
        self.future.add_done_callback(lambda _: work.clear())  # if it is cancelled, too, and waits on

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._work[0](*self._work[1])
        except BaseException as error:
            self.future.set_exception(error)
            del self  # whose future has the error, which has this frame: a circle that holds a snapshot
        else:
            self.future.set_result(result)


class WorkerPool(ShardQueue[_Job[Any]], Closing):
    """A fixed number of named threads. As a context manager it warns of those that do not end."""

    def __init__(self, workers: int, name: str = "validation") -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1; got {workers}")
        super().__init__()
        self._threads = [
            threading.Thread(target=_work, args=(self,), name=f"{name}-{i}", daemon=True)
            for i in range(workers)
        ]
        self._start()

    def _start(self) -> None:
        """Starts all threads, or none."""
        for number, thread in enumerate(self._threads):
            try:
                start(thread, advice="ask for fewer workers, or ")
            except BaseException:
                self._cancel_waiting()
                for other in self._threads[:number]:
                    other.join(_CLOSE_S)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        now, late = isinstance(error, KeyboardInterrupt), isinstance(error, ValidationTimeoutError)
        wait_s = 0.0 if now else _LATE_S if late else _CLOSE_S
        self.close(wait_s)
        stuck = ", ".join(thread.name for thread in self._threads if thread.is_alive())
        if not stuck or now:
            return
        # Where warnings are errors, this one must not take the place of the error that ended the fit.
        with contextlib.suppress(RuntimeWarning) if error is not None else contextlib.nullcontext():
            warnings.warn(
                f"{stuck} did not end within {wait_s:g} s: a job, such as the next batch of a generator "
                "or an evaluation function, does not return; its thread is abandoned until the process ends",
                RuntimeWarning,
                stacklevel=2,
            )

    @property
    def workers(self) -> int:
        return len(self._threads)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Appends a job; jobs are begun in this order."""
        job = _Job(function, arguments)
        self.put(job)
        return job.future

    def close(self, timeout_s: float = _CLOSE_S) -> bool:
        """Drops the jobs that have not begun, and waits for those that have. Idempotent."""
        self._cancel_waiting()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _cancel_waiting(self) -> None:
        for job in self.end():
            job.future.cancel()


@leaves_nothing
def _work(jobs: ShardQueue[_Job[Any]]) -> None:
    while (job := jobs.take()) is not None:
        try:
            job.run()
        finally:
            del job  # or the last job's snapshot would live until the next one comes
            jobs.done()
