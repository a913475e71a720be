"""A replica's rows of a batch, and what they make of gradients and outputs of the whole."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._training.parts import Share, rows_between
from overlap_train._training.replicas import add_shared, number_type

X = tf.constant(np.arange(10.0).reshape(5, 2), tf.float32)
ROWS = 5
# The first row and the size of a share, and the rows that its replica reads.
CASES = [(0, 3, [0, 1, 2]), (3, 2, [3, 4]), (4, 1, [4]), (5, 0, [4]), (2, 0, [2])]


def share(begin, size, known):
    if known:
        return Share(X, ROWS, begin, size)
    return Share(X, *(tf.constant(n) for n in (ROWS, begin, size)))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("begin", "size", "rows"), CASES)
def test_a_share_reads_its_rows_and_one_at_least(begin, size, rows, known):
    made = share(begin, size, known)
    np.testing.assert_array_equal(made.x, X.numpy()[rows])
    assert [int(made.start), int(made.stop)] == [rows[0], rows[-1] + 1]


@pytest.mark.parametrize("known", [True, False])
def test_what_a_share_makes_stands_at_its_place_among_zeros(known):
    output = tf.constant([[1.0], [2.0]])
    np.testing.assert_array_equal(share(3, 2, known).padded(output, ROWS), [[0], [0], [0], [1], [2]])
    np.testing.assert_array_equal(share(5, 0, known).padded(output[:1], 6), np.zeros((6, 1)))


@pytest.mark.parametrize("known", [True, False])
def test_a_row_that_is_read_for_nothing_counts_nothing(known):
    gradient = np.arange(1.0, 11.0, dtype="float32").reshape(5, 2)
    np.testing.assert_array_equal(share(3, 2, known).seed(gradient), gradient[3:])
    np.testing.assert_array_equal(share(5, 0, known).seed(gradient), [[0, 0]])


@pytest.mark.parametrize("known", [True, False])
def test_the_weights_of_all_shares_add_up_to_one(known):
    weights = [share(begin, size, known).weight(tf.float32) for begin, size in ((0, 3), (3, 2), (5, 0))]
    np.testing.assert_allclose(weights, [0.6, 0.4, 0.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (tf.float32, tf.float32),
        (tf.bfloat16, tf.bfloat16),
        (tf.int64, tf.float64),
        (tf.uint8, tf.float64),
        (tf.bool, tf.float64),
    ],
)
def test_values_are_added_in_a_type_that_changes_none(dtype, number):
    assert number_type(dtype) is number


def test_what_all_replicas_have_alike_is_divided_among_them():
    own, direct = tf.constant([1.0, 2.0]), tf.constant([8.0, 4.0])
    assert add_shared((own, None), 4) is own
    np.testing.assert_array_equal(add_shared((None, direct), 4), [2.0, 1.0])
    np.testing.assert_array_equal(add_shared((own, direct), 4), [3.0, 3.0])


def test_a_sparse_gradient_is_added_as_a_dense_one():
    sparse = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([1]), tf.constant([2, 1]))
    np.testing.assert_array_equal(add_shared((None, sparse), 2), [[0.0], [2.0]])
    np.testing.assert_array_equal(add_shared((sparse, tf.ones([2, 1])), 2), [[0.5], [4.5]])


def test_rows_of_nested_tensors_are_taken_together():
    taken = rows_between({"x": X, "weights": None, "y": [tf.range(5)]}, 1, 3)
    np.testing.assert_array_equal(taken["x"], X[1:3])
    np.testing.assert_array_equal(taken["y"][0], [1, 2])
    assert taken["weights"] is None
