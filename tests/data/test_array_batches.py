"""Slices of arrays are batches."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest
import tensorflow as tf

from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.validation_data import ArrayBatches, split_batches
from tests.data.batches import X, Y, dataset, make, sums


@pytest.mark.parametrize("steps", [None, 1, 2, 9])
def test_array_batches_end_with_a_smaller_one(steps):
    batches = make(X, Y, batch_size=5, steps=steps)
    assert isinstance(batches, ArrayBatches)
    assert batches.num_batches == min(steps or 3, 3)
    assert sums(batches, 0, batches.num_batches)[1] == min(13, 5 * (steps or 3))
    assert batches.element_spec[0].shape.as_list() == [None, 2]
    assert make(X[:10], Y[:10], batch_size=5).element_spec[0].shape.as_list() == [5, 2]


def test_parts_run_side_by_side():
    """Each of two parts waits, in its first batch, until the other has begun."""
    batches = CachedBatches(dataset(2), steps=None)
    count = batches.fill()
    both = threading.Barrier(2)

    def meet(index):
        both.wait(timeout=60)
        return index

    total, firsts = tf.Variable(0.0), [float(X[2 * s.first, 0]) for s in split_batches(count, 2)]

    def step(batch):
        x = tf.cond(
            tf.reduce_any(batch[0][0, 0] == firsts),
            lambda: tf.py_function(meet, [batch[0]], tf.float32),
            lambda: batch[0],
        )
        return [total.assign_add(tf.reduce_sum(x) + 1.0, read_value=True)]

    @tf.function(autograph=False)
    def run(held, first, stop):
        return batches.fold.over(held, first, stop, [tf.zeros([])], step, [tf.TensorShape([])])

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        parts = [[tf.constant(n, tf.int64) for n in (s.first, s.stop)] for s in split_batches(count, 2)]
        list(executor.map(lambda part: run(batches.held, *part), parts))
    assert float(total) == X.sum() + count
