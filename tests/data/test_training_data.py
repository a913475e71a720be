"""Training batches come in Keras's order, from arrays that may be held or from an iterator."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.batches import size_bytes
from overlap_train._data.iterator_feed import IteratorFeed, make_feed
from overlap_train._keras.data import recognize
from tests.data.feeds import X, Y, feed_of, keras_passes, one_pass, rows


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_batches_are_those_of_keras_for_the_same_seed(shuffle, memory):
    keras.utils.set_random_seed(3)
    expected = keras_passes(3, shuffle)
    keras.utils.set_random_seed(3)
    feed = feed_of(X, Y, batch_size=4, shuffle=shuffle, memory=memory)
    assert isinstance(feed, ArrayFeed if memory else IteratorFeed)
    assert [one_pass(feed) for _ in range(3)] == expected
    assert feed.num_batches == 4


def test_class_weights_become_sample_weights():
    feed = feed_of(X, np.arange(13) % 2, batch_size=13, shuffle=False, class_weight={0: 1.0, 1: 3.0})
    batch = feed.batch(feed.new_pass(), tf.constant(0, tf.int64))
    np.testing.assert_allclose(batch[2], np.where(np.arange(13) % 2, 3.0, 1.0))


def test_the_bytes_asked_for_are_those_of_all_arrays():
    asked = []
    make_feed(recognize(X, Y), hold_in_memory=lambda size: bool(asked.append(size)))
    assert asked == [X.nbytes + Y.nbytes]
    assert size_bytes(tf.zeros([3, 2], tf.int16)) == 12
    assert size_bytes(np.zeros((3, 2), "int16")) == 12


def test_sparse_arrays_go_through_tf_data():
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    feed = feed_of(sparse.csr_matrix(X), Y, batch_size=4, shuffle=False)
    assert isinstance(feed, IteratorFeed)
    assert one_pass(feed) == keras_passes(1, False)[0]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:0], Y[:0], r"training data is empty.*0 rows.*at least one"),
        (rows().batch(4).take(0), None, "training data is empty: its dataset has no batch"),
        (None, None, r"no training data: x is None; pass arrays"),
        (X, Y[:-1], r"(?s)'x' sizes: 13.*'y' sizes: 12"),
        ("text", None, "Unrecognized data type"),
    ],
)
def test_data_that_cannot_be_meant_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        feed_of(x, y)
