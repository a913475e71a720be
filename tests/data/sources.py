"""Training and validation data of a few rows, for the tests of this folder."""

import numpy as np
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed, make_feed
from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.validation_data import ValidationSource, make_batches
from overlap_train._keras.data import recognize

X = np.arange(26, dtype="float32").reshape(13, 2)
Y = np.arange(13)


def make(x, y=None, weight=None, *, batch_size=None, steps=None, cache_bytes=1 << 30, preprocess=None):
    given = ValidationSource(
        lambda: recognize(x, y, weight, role="validation", batch_size=batch_size, steps=steps)
    )
    return make_batches(given, steps=steps, cache_bytes=cache_bytes, preprocess=preprocess)


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def dataset(size=5):
    return rows().batch(size)


def sums(batches, first, stop):
    """Returns the number of batches from `first` to `stop`, their rows and the sum of all values."""
    total = tf.Variable(tf.zeros(3))

    def step(batch):
        x = tf.nest.flatten(batch)[0]
        return [total.assign_add([1.0, tf.cast(tf.shape(x)[0], tf.float32), tf.reduce_sum(x)])]

    if isinstance(batches, CachedBatches):
        batches.fill()
    over(batches, step, first, stop, tf.zeros(3))
    return total.numpy().tolist()


def over(batches, step, first, stop, start):
    """Does a step with each batch inside a compiled function; returns the last tensor."""

    @tf.function(autograph=False)
    def run(held, first, stop):
        return tf.while_loop(
            lambda index, _: index < stop,
            lambda index, _: (index + 1, *step(batches.fold.batch(held, index))),
            (first, start),
            parallel_iterations=1,
        )[1]

    return run(batches.held, tf.constant(first, tf.int64), tf.constant(stop, tf.int64))


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


def train(cursor, most=99, *, ends=True):
    """Draws the batches of an epoch, or the first of them, as the loop does; returns their labels."""
    cursor.begin_epoch()
    used = []
    while len(used) < most and cursor.remaining() != 0:
        steps = cursor.most_steps()
        assert steps is None or steps >= 1
        batch = next(cursor.current_pass, None)
        if batch is None:
            cursor.exhausted()
            break
        used.append(batch[1].numpy().tolist())
        cursor.advance(1)
    if ends:
        cursor.end_epoch()
    return used
