"""Training data comes in Keras's order, and a pass is made again where its seeds tell all."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.iterator_feed import IteratorFeed
from tests.data.sources import X, Y, feed_of, keras_passes, one_pass, rows


@pytest.mark.by_default("False-memory", "batch-iterator")
@pytest.mark.parametrize("kind", ["memory", "iterator", "sparse"])
@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_batches_are_those_of_keras_for_the_same_seed(shuffle, kind):
    x = X
    if kind == "sparse":
        x = pytest.importorskip("scipy.sparse", reason="scipy is not installed").csr_matrix(X)
    keras.utils.set_random_seed(3)
    expected = keras_passes(3, shuffle)
    keras.utils.set_random_seed(3)
    feed = feed_of(x, Y, batch_size=4, shuffle=shuffle, memory=kind != "iterator")
    assert isinstance(feed, ArrayFeed if kind == "memory" else IteratorFeed)
    assert [one_pass(feed) for _ in range(3)] == expected
    assert feed.num_batches == 4


PIPELINES = {
    "one shuffle": lambda: rows().shuffle(13, seed=5).batch(4),
    "no seed": lambda: rows().shuffle(13).batch(4),
    "after a cache": lambda: rows().cache().shuffle(5, seed=5).batch(4),
    "before everything": lambda: (
        rows().shuffle(13, seed=5).map(lambda x, y: (x * 2, y), tf.data.AUTOTUNE).batch(4).take(3).prefetch(2)
    ),
    "fixed": lambda: rows().shuffle(13, seed=5, reshuffle_each_iteration=False).batch(4),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets(
        [rows(), rows()], seed=1, rerandomize_each_iteration=True
    ).batch(4),
}


@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES)
def test_an_iterator_feed_repeats_its_passes(build):
    feed = feed_of(build())
    assert feed.rewindable
    passes = [one_pass(feed) for _ in range(4)]
    for back_to in (3, 0, 0, 4, 1):
        feed.rewind(back_to)
        assert [one_pass(feed) for _ in range(4 - back_to)] == passes[back_to:]


LAZY = {
    "two shuffles": lambda: rows().shuffle(13, seed=5).batch(4).shuffle(4, seed=6),
    "cached": lambda: rows().shuffle(13, seed=5).cache().batch(4),
    "repeated": lambda: rows().shuffle(13, seed=5).repeat(2).batch(4),
    "concatenated": lambda: rows().concatenate(rows().shuffle(13, seed=5)).batch(4),
    "part of an endless one": lambda: rows().shuffle(13, seed=5).repeat().batch(4).take(9),
}


@pytest.mark.parametrize("build", LAZY.values(), ids=LAZY)
def test_seeds_that_are_drawn_with_the_elements_cannot_be_drawn_again(build):
    feed = feed_of(build())
    assert not feed.rewindable
    passes = [one_pass(feed) for _ in range(2)]
    other = build()
    assert passes == [[batch[1].numpy().tolist() for batch in other] for _ in range(2)], "still Keras's order"


def test_what_python_makes_cannot_be_rewound():
    def batches():
        for i in itertools.count():
            yield np.full((2, 2), i, "float32"), np.zeros(2)

    inside = tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec([2, 2]), tf.TensorSpec([2]))
    )
    mapped = rows().map(lambda x, y: (x, tf.numpy_function(lambda v: v, [y], tf.int64)))
    for data in (batches(), inside, mapped.batch(2)):
        feed = feed_of(data, steps=2)
        assert not feed.rewindable
        feed.new_pass()
        with pytest.raises(RuntimeError, match="cannot be rewound"):
            feed.rewind(0)


def test_a_pass_that_has_become_shorter_is_an_error():
    feed = feed_of(rows().batch(4))
    feed.new_pass()
    with pytest.raises(ValueError, match="ended before batch 100"):
        feed.reopen(1, 100)
