"""The pool runs jobs in order, passes failures on, keeps nothing alive and ends."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from overlap_train._validation.pool import CallersThread, WorkerPool
from overlap_train.errors import ValidationTimeoutError

WAIT_S = 30


def test_results_and_exceptions_come_through_the_futures():
    with WorkerPool(2) as pool:
        assert pool.workers == 2
        assert pool.submit(divmod, 7, 2).result(WAIT_S) == (3, 1)
        error = pool.submit(divmod, 7, 0).exception(WAIT_S)
        assert isinstance(error, ZeroDivisionError)
        assert pool.submit(len, "ok").result(WAIT_S) == 2, "a failure does not end the worker"


def test_exceptions_that_are_no_exception_class_come_through_too():
    def leave():
        raise SystemExit(3)

    with WorkerPool(1) as pool:
        assert isinstance(pool.submit(leave).exception(WAIT_S), SystemExit)
        assert pool.submit(len, "ok").result(WAIT_S) == 2


def test_jobs_are_begun_in_the_order_of_submission():
    begun = []
    with WorkerPool(1) as pool:
        futures = [pool.submit(begun.append, i) for i in range(50)]
        for future in futures:
            future.result(WAIT_S)
    assert begun == list(range(50))


def test_threads_are_named_and_gone_after_close():
    pool = WorkerPool(3, name="validation-test")
    names = {f"validation-test-{i}" for i in range(3)}
    assert names <= {t.name for t in threading.enumerate()}
    assert pool.close()
    assert not names & {t.name for t in threading.enumerate()}
    assert pool.close(), "closing again is allowed"
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(len, "x")


def test_close_drops_what_has_not_begun_and_waits_for_what_has():
    started, go_on = threading.Event(), threading.Event()

    def job():
        started.set()
        assert go_on.wait(WAIT_S)
        return "done"

    pool = WorkerPool(1)
    running, waiting = pool.submit(job), pool.submit(job)
    assert started.wait(WAIT_S)
    assert not pool.close(timeout_s=0), "a running job cannot be ended from outside"
    assert waiting.cancelled()
    go_on.set()
    assert pool.close(timeout_s=WAIT_S)
    assert running.result() == "done"


def test_who_leaves_a_stuck_worker_behind_is_told_its_name(monkeypatch):
    started, go_on = threading.Event(), threading.Event()

    def stuck():
        started.set()
        assert go_on.wait(WAIT_S)

    monkeypatch.setattr(WorkerPool.close, "__defaults__", (0.0,))
    pool = WorkerPool(1, name="validation-stuck")
    running = pool.submit(stuck)
    assert started.wait(WAIT_S)
    with pytest.warns(RuntimeWarning, match="^validation-stuck-0 did not end within 10 s"), pool:
        pass
    go_on.set()
    running.result(WAIT_S)
    assert pool.close(timeout_s=WAIT_S)


def test_a_stuck_worker_does_not_hide_the_error_that_ended_the_fit(monkeypatch):
    """Warnings are errors in these tests."""
    started, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(WorkerPool.close, "__defaults__", (0.0,))
    pool = WorkerPool(1)
    running = pool.submit(lambda: (started.set(), go_on.wait(WAIT_S)))
    assert started.wait(WAIT_S)
    with pytest.raises(TimeoutError, match="the cause"), pool:
        raise TimeoutError("the cause")
    go_on.set()
    running.result(WAIT_S)
    assert pool.close(timeout_s=WAIT_S)


def test_behind_a_keyboard_interrupt_no_worker_is_waited_for_or_told_of():
    """Warnings are errors in these tests. A wait would end with the job, in time for nobody."""
    started, go_on = threading.Event(), threading.Event()
    pool = WorkerPool(1)
    running = pool.submit(lambda: (started.set(), go_on.wait(WAIT_S)))
    assert started.wait(WAIT_S)
    with pytest.raises(KeyboardInterrupt), pool:
        raise KeyboardInterrupt
    assert not running.done()
    go_on.set()
    running.result(WAIT_S)
    assert pool.close(timeout_s=WAIT_S)


def test_the_time_to_close_is_for_all_workers_together(monkeypatch):
    clock = iter(range(0, 1000, 4))
    waits = []
    pool = WorkerPool(3)
    monkeypatch.setattr("overlap_train._validation.pool.time.monotonic", lambda: float(next(clock)))
    for thread in pool._threads:
        join = thread.join
        monkeypatch.setattr(thread, "join", lambda t, join=join: (waits.append(t), join(WAIT_S)))
    assert pool.close(timeout_s=10.0)
    assert waits == [6.0, 2.0, 0.0]


def test_an_idle_worker_keeps_neither_job_nor_result_alive():
    class Snapshot:
        pass

    def use(snapshot):
        return Snapshot()

    with WorkerPool(1) as pool:
        snapshot = Snapshot()
        alive = weakref.ref(snapshot)
        future = pool.submit(use, snapshot)
        result = weakref.ref(future.result(WAIT_S))
        pool.submit(len, "x").result(WAIT_S)
        del snapshot, future
        gc.collect()
        assert alive() is None
        assert result() is None


def test_a_forgotten_pool_warns_and_its_threads_end():
    pool = WorkerPool(2, name="validation-leak")
    threads = [t for t in threading.enumerate() if t.name.startswith("validation-leak")]
    left = [pool]
    del pool
    with pytest.warns(ResourceWarning, match="validation-leak.*not closed"):
        left.clear()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("workers", [0, -1])
def test_a_pool_needs_a_worker(workers):
    with pytest.raises(ValueError, match="workers must be at least 1"):
        WorkerPool(workers)


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), KeyboardInterrupt()]
)
def test_a_pool_that_cannot_start_all_its_workers_leaves_none(monkeypatch, error):
    before, start = set(threading.enumerate()), threading.Thread.start

    def refuse_the_third(thread):
        if thread.name == "validation-2":
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_third)
    with pytest.raises(type(error)) as caught:
        WorkerPool(4)
    assert set(threading.enumerate()) <= before
    if isinstance(error, RuntimeError):
        assert "thread 3 of 4 could not be started" in str(caught.value)


def test_the_callers_thread_stands_in_for_a_pool():
    here = CallersThread()
    assert here.submit(threading.current_thread).result(0) is threading.current_thread()
    assert isinstance(here.submit(divmod, 7, 0).exception(0), ZeroDivisionError)
    here.hold(60.0)
    here.admit(1, after_s=60.0)
    assert here.submit(len, "ok").result(0) == 2
    assert (here.workers, here.idle) == (1, True)


def test_behind_a_timeout_it_waits_no_ten_seconds_for_a_job_that_hangs():
    started, go_on = threading.Event(), threading.Event()

    def hang():
        started.set()
        assert go_on.wait(WAIT_S)

    def fail():
        with pool:
            pool.submit(hang)
            assert started.wait(WAIT_S)
            raise ValidationTimeoutError

    pool = WorkerPool(1)
    with pytest.warns(RuntimeWarning, match="did not end within 1 s"), pytest.raises(ValidationTimeoutError):
        fail()
    go_on.set()
    assert pool.close(timeout_s=WAIT_S)
