"""The pool runs no more jobs than it was told, in order, passes failures on, keeps nothing alive and ends."""

import contextlib
import threading
import weakref

import pytest

from overlap_train._validation.pool import ShardQueue, WorkerPool
from overlap_train.errors import ValidationTimeoutError

WAIT_S = 30


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [(None, 10), (OSError("the cause"), None), (ValidationTimeoutError(), 1), (KeyboardInterrupt(), None)],
    ids=["none", "another", "timeout", "interrupt"],
)
def test_who_leaves_a_stuck_worker_behind_is_told_its_name_unless_an_error_says_why(
    error, wait_s, monkeypatch
):
    """Warnings are errors in these tests. Behind an interrupt no worker is waited for."""
    started, go_on, waited = threading.Event(), threading.Event(), []
    pool = WorkerPool(1, name="validation-stuck")
    running, close = pool.submit(lambda: (started.set(), go_on.wait(WAIT_S))), pool.close
    monkeypatch.setattr(pool, "close", lambda seconds: (waited.append(seconds), close(0.0)))
    assert started.wait(WAIT_S)
    with contextlib.ExitStack() as expected:
        if error is not None:
            expected.enter_context(pytest.raises(type(error)))
        if wait_s is not None:
            told = f"^validation-stuck-0 did not end within {wait_s} s"
            expected.enter_context(pytest.warns(RuntimeWarning, match=told))
        with pool:
            if error is not None:
                raise error
    assert waited == [wait_s or (0.0 if isinstance(error, KeyboardInterrupt) else 10.0)]
    go_on.set()
    running.result(WAIT_S)
    assert close(WAIT_S)


class Snapshot:
    pass


def fail(snapshot):
    raise ZeroDivisionError


def test_a_cancelled_job_that_waits_for_a_worker_keeps_nothing_alive():
    with WorkerPool(1) as pool:
        pool.hold(WAIT_S)
        snapshot = Snapshot()
        future, alive = pool.submit(fail, snapshot), weakref.ref(snapshot)
        future.cancel()
        del snapshot
        assert alive() is None
        pool.admit(None)


@pytest.mark.parametrize("use", [lambda snapshot: Snapshot(), fail], ids=["result", "error"])
def test_an_idle_worker_keeps_neither_job_nor_result_alive(use):
    with WorkerPool(1) as pool:
        snapshot = Snapshot()
        future = pool.submit(use, snapshot)
        of_job = snapshot if future.exception(WAIT_S) else future.result()
        alive = [weakref.ref(snapshot), weakref.ref(of_job)]
        pool.submit(len, "x").result(WAIT_S)
        del snapshot, future, of_job
        assert [each() for each in alive] == [None, None], "it waits for the garbage collector"


def test_an_idle_worker_lets_its_last_job_go_without_another_one():
    gone, snapshot = threading.Event(), Snapshot()
    weakref.finalize(snapshot, gone.set)
    with WorkerPool(1) as pool:
        pool.submit(id, snapshot).result(WAIT_S)
        del snapshot
        assert gone.wait(WAIT_S)


def test_a_job_beyond_those_admitted_waits_until_one_is_done(monkeypatch):
    class WaitedError(Exception):
        pass

    def wait(timeout=None):
        raise WaitedError

    queue = ShardQueue()
    queue.admit(2)
    for job in "abc":
        queue.put(job)
    monkeypatch.setattr(queue._changed, "wait", wait)
    assert [queue.take(), queue.take()] == ["a", "b"]
    with pytest.raises(WaitedError):
        queue.take()
    queue.done()
    assert queue.take() == "c"


def taking(queue, workers=1):
    """Has threads take a job each; returns them and what they take."""
    taken = []
    take = lambda: taken.append(queue.take())  # noqa: E731
    threads = [threading.Thread(target=take, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    return threads, taken


def test_held_jobs_begin_when_they_are_admitted_and_a_closed_queue_gives_them_back():
    queue = ShardQueue()
    queue.hold(3600.0)
    queue.put("job")
    (thread,), taken = taking(queue)
    queue.admit(None)
    thread.join(WAIT_S)
    assert taken == ["job"]
    assert not queue.idle
    queue.done()
    queue.admit(0)
    for job in "abc":
        queue.put(job)
    threads, taken = taking(queue, 3)
    assert queue.end() == ["a", "b", "c"]
    for thread in threads:
        thread.join(WAIT_S)
    assert taken == [None, None, None]
    with pytest.raises(RuntimeError, match="closed"):
        queue.put("d")
    assert queue.idle


def test_held_jobs_begin_when_the_time_has_passed(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("overlap_train._validation.pool.time.monotonic", lambda: now[0])
    queue = ShardQueue()
    queue.hold(0.05)
    queue.put("job")
    waited = []

    def wait(timeout=None):
        waited.append(timeout)
        now[0] += timeout

    monkeypatch.setattr(queue._changed, "wait", wait)
    assert queue.take() == "job"
    assert waited == [pytest.approx(0.05)]


def test_held_jobs_let_the_training_call_begin_first(monkeypatch):
    """Nor are they held back any longer when the next call comes before they have begun."""
    now, queue, waited = [100.0], ShardQueue(), []
    monkeypatch.setattr("overlap_train._validation.pool.time.monotonic", lambda: now[0])

    def wait(timeout=None):
        waited.append(timeout)
        queue.admit(1, after_s=0.002)
        now[0] += 0.0015

    monkeypatch.setattr(queue._changed, "wait", wait)
    queue.hold(0.05)
    queue.put("job")
    queue.admit(1, after_s=0.002)
    assert queue.take() == "job"
    assert waited == [pytest.approx(0.002), pytest.approx(0.0005)]
    queue.put("next")
    queue.done()
    queue.admit(1, after_s=0.002)
    assert queue.take() == "next", "what is not held does not wait"
    assert len(waited) == 2


def test_who_takes_a_job_calls_the_next_worker_if_there_is_more(monkeypatch):
    queue, called = ShardQueue(), []
    monkeypatch.setattr(queue._changed, "notify", lambda: called.append(len(queue._jobs)))
    queue.admit(2)
    for job in "abc":
        queue.put(job)
    assert called == [1], "one at a time"
    assert queue.take() == "a"
    assert called == [1, 2]
    assert queue.take() == "b"
    assert called == [1, 2], "both that are admitted are at work"
    queue.done()
    assert queue.take() == "c"
