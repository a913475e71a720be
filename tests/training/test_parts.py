"""Parts of a batch draw and put together what the whole batch would have."""

from __future__ import annotations

import contextlib
import itertools

import keras
import numpy as np
import tensorflow as tf

from overlap_train._training.parts import whole_batch_dropout

ROWS, WIDTH = 6, 5
X = tf.constant(np.arange(1.0, ROWS * WIDTH + 1).reshape(ROWS, WIDTH), tf.float32)


def dropping(*, twice=False, seed=3):
    inputs = keras.Input((WIDTH,))
    drop = keras.layers.Dropout(0.5, seed=seed)
    outputs = drop(inputs)
    return keras.Model(inputs, drop(outputs) if twice else outputs)


def in_parts(model, *bounds, rows=ROWS, masks=None):
    masks = {} if masks is None else masks
    with contextlib.ExitStack() as patches:
        begin_part = whole_batch_dropout(model, patches)
        parts = []
        for begin, end in itertools.pairwise(bounds):
            begin_part(rows, begin, end, masks)
            parts.append(model(X[begin:end], training=True))
    return tf.concat(parts, 0)


def test_parts_get_the_random_numbers_of_the_whole_batch():
    whole, parted = dropping(twice=True), dropping(twice=True)
    np.testing.assert_array_equal(in_parts(parted, 0, 1, 3, 6), whole(X, training=True))
    # Also the numbers after that: the generator has been drawn from once for each call.
    np.testing.assert_array_equal(parted(X, training=True), whole(X, training=True))


def test_what_has_no_row_for_each_of_the_batch_has_one_mask_for_all_parts():
    layer = keras.layers.Dropout(0.5, seed=3)
    model = keras.Sequential([keras.Input((WIDTH,)), layer])
    table = tf.ones([3, WIDTH])  # such as of positions
    masks = {}
    with contextlib.ExitStack() as patches:
        begin_part = whole_batch_dropout(model, patches)
        results = []
        for begin, end in ((0, 2), (2, 6)):
            begin_part(ROWS, begin, end, masks)
            results.append(layer(table, training=True))
    np.testing.assert_array_equal(*results)
    (mask,) = masks.values()
    assert mask.shape == (3, WIDTH)
