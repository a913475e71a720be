"""A thread leaves nothing of TensorFlow's behind, and a `with` statement nothing open."""

import gc
import threading

import pytest
import tensorflow as tf
from tensorflow.python.eager.context import FunctionCallOptions

from overlap_train._support.closing import Closing
from overlap_train._support.threads import in_background, leaves_nothing, start
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


def run_behind(main):
    in_background(main, "behind").result()
    for thread in threading.enumerate():
        if thread.name == "behind":
            thread.join()


def call():
    ADD(ONE)


def test_tensorflow_keeps_the_options_of_a_thread_that_has_ended():
    """The day on which this fails, `leaves_nothing` has become needless."""
    call()
    before = options()
    run_in_a_thread(call)
    assert options() == before + 1


@pytest.mark.parametrize(
    "run", [lambda main: run_in_a_thread(leaves_nothing(main)), run_in_a_pool, run_behind]
)
def test_threads_that_call_tensorflow_leave_nothing(run):
    call()
    before = options()
    run(call)
    assert options() == before


@pytest.fixture
def no_threads(monkeypatch):
    """Has the system start no more threads."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_thread_that_the_system_does_not_start_is_named_with_what_helps(no_threads):
    with pytest.raises(RuntimeError, match=r"the thread 'mine' could not be started \(can't .*ulimit -u"):
        start(threading.Thread(name="mine"))


def test_what_no_thread_can_be_had_for_is_done_at_once(no_threads):
    assert in_background(threading.current_thread, "mine").result(timeout=0) is threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 / 0, "mine").result(timeout=0)


@pytest.mark.parametrize("daemon", [False, True])
def test_what_a_thread_can_be_had_for_is_done_there(daemon):
    thread = in_background(threading.current_thread, "mine", daemon=daemon).result(timeout=60)
    assert (thread.name, thread.daemon) == ("mine", daemon)
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 / 0, "mine").result(timeout=60)


class Resource(Closing):
    """Counts how often it was closed."""

    def __init__(self):
        self.closed = self.closed_now = 0

    def close(self):
        self.closed += 1

    def close_now(self):
        self.closed_now += 1


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_a_block_gives_the_resource_closes_it_and_raises_what_it_raises(error):
    with Resource() as resource:
        assert not resource.closed
    assert resource.closed == 1
    resource = Resource()
    with pytest.raises(error), resource:
        raise error
    now = error is KeyboardInterrupt  # which waits for nothing
    assert (resource.closed, resource.closed_now) == (not now, now)
