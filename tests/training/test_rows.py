"""The rows of nested batches, with shapes that are known and with those that only the batch knows."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from overlap_train._training.parts import leaves_of, row_count


def test_the_leaves_leave_out_what_is_not_given():
    first, second = tf.zeros((3, 2)), tf.zeros((3,))
    assert [id(leaf) for leaf in leaves_of(({"a": first}, None, [second, None]))] == [id(first), id(second)]


def test_rows_are_counted_by_the_shape_or_else_by_the_batch():
    assert row_count(tf.zeros((3, 2))) == 3
    counted = tf.function(row_count, input_signature=[tf.TensorSpec([None, 2])])
    assert counted(tf.zeros((5, 2))).numpy() == 5
    assert isinstance(row_count(tf.constant(np.zeros((0, 2)))), int)
