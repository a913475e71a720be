"""Feeds of a few rows, for the tests of this folder."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.iterator_feed import make_feed
from overlap_train._keras.data import recognize

X = np.arange(26, dtype="float32").reshape(13, 2)


Y = np.arange(13)


def feed_of(x, y=None, weight=None, *, memory=True, shuffle=True, preprocess=None, **options):
    data = recognize(x, y, weight, shuffle=shuffle, **options)
    return make_feed(data, hold_in_memory=lambda size: memory, preprocess=preprocess)


def one_pass(feed):
    """Returns the labels of each batch of the next pass."""
    batches = feed.new_pass()
    if isinstance(feed, ArrayFeed):
        order = batches
        batches = [feed.batch(order, tf.constant(i, tf.int64)) for i in range(feed.num_batches)]
    return [batch[1].numpy().tolist() for batch in batches]


def keras_passes(count, shuffle):
    data = recognize(X, Y, batch_size=4, shuffle=shuffle).pipeline.dataset
    return [[batch[1].numpy().tolist() for batch in data] for _ in range(count)]


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))
