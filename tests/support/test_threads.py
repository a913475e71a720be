"""A thread that called TensorFlow leaves nothing of TensorFlow's behind."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf
from tensorflow.python.eager.context import FunctionCallOptions

from overlap_train._support.threads import leaves_nothing, start, submitted
from overlap_train._training.warm_up import WarmUp
from overlap_train._validation.pool import WorkerPool

ADD = tf.function(lambda value: value + 1.0)
ONE = tf.constant(1.0)


def options() -> int:
    gc.collect()
    return sum(type(thing) is FunctionCallOptions for thing in gc.get_objects())


def run_in_a_thread(main):
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()


def run_in_a_pool(main):
    with WorkerPool(3) as pool:
        for future in [pool.submit(main) for _ in range(6)]:
            future.result()


def run_in_a_warm_up(main):
    WarmUp(main).wait()


def call():
    ADD(ONE)


def test_tensorflow_keeps_the_options_of_a_thread_that_has_ended():
    """The day on which this fails, `leaves_nothing` has become needless."""
    call()
    before = options()
    run_in_a_thread(call)
    assert options() == before + 1


@pytest.mark.parametrize(
    "run", [lambda main: run_in_a_thread(leaves_nothing(main)), run_in_a_pool, run_in_a_warm_up]
)
def test_threads_that_call_tensorflow_leave_nothing(run):
    call()
    before = options()
    run(call)
    assert options() == before


def test_what_is_raised_is_raised():
    @leaves_nothing
    def fail():
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        fail()
    assert ADD(ONE) == 2.0  # this thread goes on


@pytest.fixture
def no_threads(monkeypatch):
    """Has the system start no more threads."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_thread_that_the_system_does_not_start_is_named_with_what_helps(no_threads):
    with pytest.raises(RuntimeError, match=r"the thread 'mine' could not be started \(can't .*ulimit -u"):
        start(threading.Thread(name="mine"))


def test_a_thread_is_started():
    ran = []
    start(threading.Thread(target=ran.append, args=(1,))).join()
    assert ran == [1]


def test_what_no_thread_can_be_had_for_is_done_at_once_and_in_its_order(no_threads, monkeypatch):
    done = []
    with ThreadPoolExecutor(1) as executor:
        for number in range(2):
            future = submitted(executor, lambda n: done.append(n) or threading.current_thread(), number)
            assert done == list(range(number + 1))
            assert future.result(timeout=0) is threading.current_thread()
        monkeypatch.undo()  # nothing that could not be begun is begun later
        submitted(executor, done.append, 2).result(timeout=60)
        with pytest.raises(ZeroDivisionError):
            submitted(executor, lambda: 1 / 0).result(timeout=0)
    assert done == [0, 1, 2]


def test_what_a_thread_can_be_had_for_is_done_there():
    with ThreadPoolExecutor(1) as executor:
        assert submitted(executor, threading.current_thread).result() is not threading.current_thread()
