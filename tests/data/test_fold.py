"""Batches in memory are gone through from the first to the last, inside a compiled function."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.cached_batches import Fold

ROWS = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])


class Pairs(Fold):
    """Batches of two rows; the last one may have fewer."""

    def batch(self, held, index):
        return held[2 * index : 2 * index + 2]


@pytest.fixture(scope="module")
def gone_through():
    """Returns a compiled function of a first and a last number, and how often a step was traced."""
    traced, seen = [], tf.Variable(0.0)

    def step(batch):
        traced.append(1)
        seen.assign_add(tf.reduce_sum(batch))
        return [batch, tf.size(batch)]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64)] * 2)
    def run(first, stop):
        seen.assign(0.0)
        start, shapes = [tf.zeros([0]), tf.constant(-1)], [tf.TensorShape([None]), tf.TensorShape([])]
        carried = Pairs().over(ROWS, first, stop, start, step, shapes)
        return [*carried, seen.read_value()]

    run(0, 3)
    return run, traced


@pytest.mark.parametrize(
    ("first", "stop", "last", "total"),
    [(0, 3, [5.0], 15.0), (0, 2, [3.0, 4.0], 10.0), (1, 3, [5.0], 12.0), (1, 2, [3.0, 4.0], 7.0)],
)
def test_each_batch_is_taken_once_and_the_last_tensors_are_returned(gone_through, first, stop, last, total):
    run, _ = gone_through
    batch, size, seen = run(first, stop)
    np.testing.assert_array_equal(batch, last)
    assert (int(size), float(seen)) == (len(last), total)


@pytest.mark.parametrize("at", [0, 2])
def test_of_no_batch_the_first_tensors_are_returned(gone_through, at):
    run, _ = gone_through
    batch, size, seen = run(at, at)
    assert (len(batch), int(size), float(seen)) == (0, -1, 0.0)


def test_the_step_is_traced_once_for_all_batches(gone_through):
    _, traced = gone_through
    assert len(traced) == 1
