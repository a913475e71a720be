"""TensorFlow does not run in the fork of a process that had used it, and that is said."""

from __future__ import annotations

import gc
import os
import signal

import pytest
import tensorflow as tf

from overlap_train._keras import threads


def test_where_nothing_was_forked_it_runs():
    assert threads._parent is None
    threads.require_runtime()


@pytest.mark.parametrize("used", [True, False])
def test_a_fork_of_one_that_had_used_it_is_refused(monkeypatch, used):
    monkeypatch.setattr(threads, "_parent", None)
    monkeypatch.setattr(threads, "_is_running", lambda: used)
    threads._note_fork()
    if not used:
        threads.require_runtime()
        return
    with pytest.raises(RuntimeError, match=rf"forked from process {os.getppid()} after that had used"):
        threads.require_runtime()


def test_it_is_known_whether_the_runtime_runs():
    tf.constant(1)
    assert threads._is_running()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("collects", [True, False])
def test_a_fork_does_not_end_the_iterators_of_its_parent(collects):
    """Their end would run Python on a thread of TensorFlow's, which the fork does not have."""
    data = tf.data.Dataset.from_generator(lambda: iter("ab"), output_signature=tf.TensorSpec([], tf.string))
    gc.collect()
    gc.disable()
    garbage = [iter(data)]
    next(garbage[0])
    garbage.append(garbage)
    del garbage
    if collects:
        gc.enable()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        enabled = gc.isenabled()
        gc.collect()
        os._exit(enabled)
    enabled = gc.isenabled()
    gc.enable()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == enabled == collects
    assert not threads._forking
