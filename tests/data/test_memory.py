"""Arrays that can be lent take no memory, and all others are copied."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from overlap_train import zero_copy
from overlap_train._data.batches import copied_bytes
from overlap_train._data.iterator_feed import make_feed
from overlap_train._keras.data import recognize
from tests.data.feeds import X, Y, feed_of, one_pass


def mapped(tmp_path, array):
    np.save(tmp_path / "rows.npy", array)
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


def test_a_mapped_file_is_read_where_it_lies(tmp_path):
    rows = mapped(tmp_path, X)
    before = zero_copy.statistics()
    feed = feed_of(rows, Y, batch_size=4, shuffle=False)
    assert zero_copy.statistics().copied_bytes == before.copied_bytes
    assert zero_copy.as_array(feed.tensors[0]).ctypes.data == rows.ctypes.data
    assert one_pass(feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]


def test_a_mapped_file_does_not_count_as_memory(tmp_path):
    asked = []
    make_feed(recognize(mapped(tmp_path, X), Y), hold_in_memory=lambda size: asked.append(size))
    assert asked == [Y.nbytes]


def test_what_cannot_be_lent_counts_as_memory(tmp_path):
    assert copied_bytes(mapped(tmp_path, X)) == 0
    assert copied_bytes(mapped(tmp_path, X)[:, :1]) == 13 * 4, "not contiguous"
    assert copied_bytes(mapped(tmp_path, X)[1:]) == 12 * 8, "not aligned"
    assert copied_bytes(X) == X.nbytes, "writable"
    assert copied_bytes(tf.constant(X)) == X.nbytes, "a tensor of the user's"
