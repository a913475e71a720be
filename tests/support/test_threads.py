"""A thread that called TensorFlow leaves nothing of TensorFlow's behind."""

from __future__ import annotations

import gc
import threading

import pytest
import tensorflow as tf
from tensorflow.python.eager.context import FunctionCallOptions

from overlap_train._support.threads import leaves_nothing
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
