"""What Keras has TensorFlow fetch ahead of a pipeline is fetched here, where the next pass shows it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.pipeline import is_asked_for_its_end, prepared_batches


def rows():
    return tf.data.Dataset.from_tensor_slices(np.arange(24, dtype="float32").reshape(12, 2))


def forbidden(dataset):
    """Returns a dataset that TensorFlow must not have prefetched."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def _is_small(row):
    return row[0] < 3.0


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda d: d.shuffle(12).repeat(), True),
        (lambda d: d.shuffle(12).batch(2).repeat(3).map(tf.identity), True),
        (lambda d: d.shuffle(12).repeat().prefetch(1), False),
        (lambda d: d.shuffle(12).repeat().map(tf.identity, num_parallel_calls=2), False),
        (lambda d: d.repeat().shuffle(12), False),
        (lambda d: d.shuffle(12, reshuffle_each_iteration=False).repeat(), False),
        (lambda d: d.shuffle(12), False),
        (lambda d: d.shuffle(12).cache(), False),
    ],
)
def test_a_repeated_shuffle_is_begun_ahead_as_keras_has_it(make, expected):
    """By a stage that draws one batch ahead: then the next order is drawn behind the last batch of a pass."""
    given = make(rows())
    prepared = prepared_batches(given, None)
    (stage,) = prepared._inputs()
    assert (type(prepared).__name__, stage is given) == ("_OptionsDataset", not expected)
    assert type(stage).__name__ == "_PrefetchDataset" or not expected
    assert int(prepared.cardinality()) == int(given.cardinality())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda d: d.filter(_is_small).cache().batch(2), True),
        (lambda d: d.filter(_is_small).cache().apply(tf.data.experimental.assert_cardinality(2)), True),
        (lambda d: forbidden(d.filter(_is_small).batch(2).cache().prefetch(1)), True),
        (lambda d: forbidden(d.filter(_is_small).batch(2).cache()), False),
        (lambda d: d.filter(_is_small).batch(2), False),
        (lambda d: d.shuffle(12).cache(), False),
    ],
)
def test_a_cache_is_asked_for_its_end_that_does_not_know_its_length(make, expected):
    assert is_asked_for_its_end(make(rows())) is expected


def test_nothing_is_begun_ahead_that_the_user_has_forbidden():
    dataset = forbidden(rows().shuffle(12).repeat())
    assert type(prepared_batches(dataset, None)._inputs()[0]) is not type(dataset.prefetch(1))
