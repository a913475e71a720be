"""A thread that stands in for another writes summaries as that one would."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import keras
import pytest
import tensorflow as tf

from overlap_train._keras.threads import SummaryDefaults, SummaryFollower


@pytest.fixture
def elsewhere():
    """Returns what calls a function on another thread, which has followed this one."""
    follower = SummaryFollower()
    with ThreadPoolExecutor(1) as pool:

        def call(function):
            defaults = SummaryDefaults.of_this_thread()
            return pool.submit(lambda: (follower.follow(defaults), function())[1]).result()

        yield call


def records():
    return bool(tf.summary.should_record_summaries())


def test_without_a_writer_nothing_is_recorded(elsewhere):
    assert not elsewhere(records)


def test_the_writer_comes_and_goes(elsewhere, tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        assert elsewhere(records)
        for condition in (False, lambda: False, tf.constant(False)):
            with tf.summary.record_if(condition):
                assert not elsewhere(records)
        assert elsewhere(records)
    assert not elsewhere(records)


@pytest.mark.parametrize("make", [lambda n: n, tf.constant, tf.Variable, keras.Variable])
def test_a_step_is_the_number_that_it_was(elsewhere, make):
    step = make(7)
    tf.summary.experimental.set_step(step)
    try:
        defaults = SummaryDefaults.of_this_thread()
        if hasattr(step, "assign"):
            step.assign(9)
        assert defaults.step == 7
    finally:
        tf.summary.experimental.set_step(None)
    assert elsewhere(tf.summary.experimental.get_step) is None


def test_what_the_thread_sets_stays_until_the_other_one_sets_something_else(elsewhere):
    elsewhere(lambda: tf.summary.experimental.set_step(3))
    assert elsewhere(tf.summary.experimental.get_step) == 3
    tf.summary.experimental.set_step(5)
    try:
        assert elsewhere(tf.summary.experimental.get_step) == 5
    finally:
        tf.summary.experimental.set_step(None)
