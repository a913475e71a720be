"""The queue lets no more jobs begin than it was told, holds new ones back for a while, and ends."""

from __future__ import annotations

import threading

import pytest

from overlap_train._validation import pool
from overlap_train._validation.pool import ShardQueue, WorkerPool

WAIT_S = 30


class Busy:
    """Jobs that stay under way until they are told to end, and count how many are."""

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.end = threading.Semaphore(0)
        self.under_way = 0
        self.most = 0
        self._lock = threading.Lock()

    def job(self):
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        self.begun.release()
        assert self.end.acquire(timeout=WAIT_S)
        with self._lock:
            self.under_way -= 1


def test_no_more_jobs_are_under_way_than_admitted_and_all_run():
    busy = Busy()
    with WorkerPool(4) as pool:
        pool.admit(2)
        futures = [pool.submit(busy.job) for _ in range(8)]
        for _ in range(8):
            assert busy.begun.acquire(timeout=WAIT_S)
            busy.end.release()
        for future in futures:
            future.result(WAIT_S)
    assert busy.most <= 2


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


def test_nothing_is_put_into_a_closed_queue():
    queue = ShardQueue()
    assert queue.put("a")
    assert not queue.idle
    assert queue.close() == ["a"]
    assert not queue.put("b")
    assert queue.idle


def test_admitting_more_lets_those_begin_that_wait():
    busy = Busy()
    with WorkerPool(3) as pool:
        pool.admit(1)
        futures = [pool.submit(busy.job) for _ in range(3)]
        assert busy.begun.acquire(timeout=WAIT_S)
        pool.admit(None)
        for _ in range(2):
            assert busy.begun.acquire(timeout=WAIT_S), "all three are under way"
        busy.end.release(3)
        for future in futures:
            future.result(WAIT_S)
    assert busy.most == 3


def test_held_jobs_begin_when_they_are_admitted():
    queue = ShardQueue()
    queue.hold(3600.0)
    queue.put("job")
    taken = []
    thread = threading.Thread(target=lambda: taken.append(queue.take()))
    thread.start()
    queue.admit(None)
    thread.join(WAIT_S)
    assert taken == ["job"]


def test_held_jobs_begin_when_the_time_has_passed(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])
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
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])

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


def test_workers_that_could_not_begin_are_left_asleep(monkeypatch):
    """Of six, one is woken to watch for the end of the hold and one by the training call."""
    with WorkerPool(6) as pool:
        woken, wait = [], pool._jobs._changed.wait

        def counted(timeout=None):
            wait(timeout)
            woken.append(threading.current_thread().name)

        monkeypatch.setattr(pool._jobs._changed, "wait", counted)
        barrier = threading.Barrier(7)
        for _ in range(6):  # all of them come to wait there
            pool.submit(barrier.wait, WAIT_S)
        barrier.wait(WAIT_S)
        pool.admit(1)
        pool.hold(3600.0)
        futures = [pool.submit(len, "part") for _ in range(12)]
        pool.admit(1, after_s=0.002)
        assert [future.result(WAIT_S) for future in futures] == [4] * 12
        assert len(woken) <= 4


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


def test_close_gives_back_what_waits_and_ends_those_that_take():
    queue = ShardQueue()
    queue.admit(0)
    for job in "abc":
        queue.put(job)
    taken = []
    threads = [threading.Thread(target=lambda: taken.append(queue.take())) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert queue.close() == ["a", "b", "c"]
    for thread in threads:
        thread.join(WAIT_S)
    assert taken == [None, None, None]


def test_a_job_that_fails_makes_room_for_the_next():
    with WorkerPool(2) as pool:
        pool.admit(1)
        failing = [pool.submit(divmod, 1, 0) for _ in range(5)]
        assert all(isinstance(f.exception(WAIT_S), ZeroDivisionError) for f in failing)
        assert pool.submit(len, "ok").result(WAIT_S) == 2
