"""Parts of a batch draw and put together what the whole batch would have."""

import contextlib
import itertools

import keras
import numpy as np
import tensorflow as tf

from overlap_train._training.parts import whole_batch_dropout

ROWS, WIDTH = 6, 5
X = tf.constant(np.arange(1.0, ROWS * WIDTH + 1).reshape(ROWS, WIDTH), tf.float32)


def dropping(*, twice=False):
    inputs = keras.Input((WIDTH,))
    drop = keras.layers.Dropout(0.5, seed=3)
    outputs = drop(inputs)
    return keras.Model(inputs, drop(outputs) if twice else outputs)


class Folding(keras.layers.Layer):
    def __init__(self, seed):
        super().__init__()
        self.drop = keras.layers.Dropout(0.5, seed=seed)

    def call(self, x, training=False):
        return keras.ops.reshape(
            self.drop(keras.ops.reshape(x, (-1, 1)), training=training), keras.ops.shape(x)
        )


def in_parts(model, *bounds, x=X, masks=None):
    """Returns what a model makes of each part of a batch; `x` has a row for each, or is the same for all."""
    masks = {} if masks is None else masks
    with contextlib.ExitStack() as patches:
        part = whole_batch_dropout(model, patches)
        parts = []
        for begin, end in itertools.pairwise(bounds):
            with part(ROWS, begin, end, masks):
                parts.append(model(x[begin:end] if len(x) == ROWS else x, training=True))
    return parts


def test_parts_get_the_random_numbers_of_the_whole_batch():
    whole, parted = dropping(twice=True), dropping(twice=True)
    np.testing.assert_array_equal(tf.concat(in_parts(parted, 0, 1, 3, 6), 0), whole(X, training=True))
    # Also the numbers after that: the generator has been drawn from once for each call.
    np.testing.assert_array_equal(parted(X, training=True), whole(X, training=True))


def test_rows_that_are_folded_with_another_axis_get_those_of_the_whole_batch():
    fold = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Reshape((WIDTH, 1)), Folding(3)])
    parted = keras.Sequential([*fold.layers[:1], Folding(3)])
    np.testing.assert_array_equal(tf.concat(in_parts(parted, 0, 1, 3, 6), 0), fold(X, training=True))


def test_what_has_no_row_for_each_of_the_batch_has_one_mask_for_all_parts():
    model, masks = dropping(), {}

    @tf.function
    def parts():
        return in_parts(model, 0, 1, 6, x=tf.ones([3, WIDTH]), masks=masks)  # such as of positions

    np.testing.assert_array_equal(*parts())
    (mask,) = masks.values()
    assert mask.shape == (3, WIDTH)
