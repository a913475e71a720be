"""Loops make the steps asked for in one call, and the pace sizes the calls by time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.array_feed import make_feed
from overlap_train._data.cursor import Cursor
from overlap_train._keras.data import recognize
from overlap_train._training.drawn_loops import EagerLoop, IteratorLoop
from overlap_train._training.execution import make_loop
from overlap_train._training.loops import ArrayLoop, Pace
from overlap_train._training.step import Step

ROWS = np.arange(10, dtype="float32")


class Model(keras.Model):
    """A model without layers, losses and metrics."""

    optimizer = None


def make(kind, *, own_logs=True, guard=False, rows=ROWS, known=True):
    """Returns a loop over batches of three rows, its cursor and the variable that adds up what it saw."""
    sum_of_rows = tf.Variable(0.0)

    def function(batch):
        total = tf.reduce_sum(batch[0] if isinstance(batch, tuple) else batch)
        with tf.control_dependencies([sum_of_rows.assign_add(total)]):
            return {"loss": tf.identity(total)} if own_logs else {}

    data = rows
    if kind == "iterator":
        data = tf.data.Dataset.from_tensor_slices(rows).batch(3)
        data = data if known else data.filter(lambda x: True)
    feed = make_feed(recognize(data, batch_size=3), hold_in_memory=lambda _: True)
    step = Step(Model(), function, halt_on_nonfinite=guard)
    if kind != "eager":
        step.adopt(step.trace(feed.element_spec))
    loop = EagerLoop(step) if kind == "eager" else make_loop(feed, step)
    assert isinstance(loop, {"arrays": ArrayLoop, "iterator": IteratorLoop, "eager": EagerLoop}[kind])
    cursor = Cursor(feed, None)
    cursor.begin_epoch()
    return loop, cursor, sum_of_rows


KINDS = ["arrays", "iterator", "eager"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_where_it_stopped_and_ends_with_the_smaller_batch(kind):
    loop, cursor, seen = make(kind)
    done = loop.run(cursor, 1)
    assert (done.steps, cursor.seen, float(seen)) == (1, 1, 3.0)
    done = loop.run(cursor, 3)
    assert (done.steps, cursor.steps, float(seen)) == (3, 4, 45.0)
    assert float(done.logs["loss"]) == 9.0, "the last batch's"
    assert not done.exhausted
    assert cursor.remaining() == 0


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_call_that_makes_no_step_has_no_logs():
    """Else the empty ones that a loop begins with would pass for a step's."""
    loop, cursor, _ = make("iterator", known=False)
    assert loop.run(cursor, 4).steps == 4
    done = loop.run(cursor, 1)
    assert (done.steps, done.exhausted, done.logs) == (0, True, {})


@pytest.mark.parametrize("kind", ["arrays", "iterator"])
def test_what_prepares_it_makes_no_step_and_draws_no_batch(kind):
    loop, cursor, seen = make(kind)
    work = loop.on_nothing(cursor.feed)
    work()
    work()
    assert (float(seen), cursor.seen) == (0.0, 0)
    assert loop.run(cursor, 4).steps == 4
    assert float(seen) == 45.0


def test_batches_that_nobody_can_stand_in_for_are_waited_for(monkeypatch):
    def refuse(*arguments, **options):
        raise TypeError("no such batch")

    loop, cursor, _ = make("iterator")
    monkeypatch.setattr(tf.raw_ops, "AnonymousIteratorV3", refuse)
    assert loop.on_nothing(cursor.feed) is None
    assert loop.run(cursor, 4).steps == 4


@pytest.mark.parametrize(
    ("calls", "step_s", "steps"),
    [
        ([], None, 1),
        ([(1, 30.0)], None, 4),  # which includes tracing
        ([(1, 1.0), (4, 0.004)], 0.001, 250),
        ([(1, 1.0), (4, 0.004), (250, 100.0)], 0.004, 62),  # a stalled call counts for a factor of four
    ],
)
def test_calls_are_sized_by_the_time_of_the_ones_before(calls, step_s, steps):
    pace = Pace()
    for call in calls:
        pace.observe(*call)
    assert (pace.step_s, pace.steps()) == (step_s, steps)
