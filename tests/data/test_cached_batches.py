"""Batches of a dataset are kept as they are, and prepared once."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data import cached_batches
from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.validation_data import split_batches
from tests.data.batches import X, Y, dataset, make, over, sums


@pytest.fixture(params=["all by Python", "all but one compiled"], autouse=True)
def drawn_by(request, monkeypatch):
    if request.param != "all by Python":
        monkeypatch.setattr(cached_batches, "_ONE_BY_ONE", 1)


@pytest.mark.parametrize("count", [63, 64, 65, 200])
def test_every_batch_is_kept_whoever_draws_it(count):
    batches = CachedBatches(tf.data.Dataset.range(count).batch(1), steps=None)
    assert batches.fill() == count
    kept = [int(batches.fold.batch(batches.held, index)[0]) for index in range(count)]
    assert kept == list(range(count))


def test_parts_add_up_to_the_whole_for_arrays_and_datasets():
    for batches in (make(X, Y, batch_size=2), make(dataset(2))):
        count = batches.fill() if isinstance(batches, CachedBatches) else batches.num_batches
        whole = sums(batches, 0, count)
        parts = [sums(batches, s.first, s.stop) for s in split_batches(count, 3)]
        np.testing.assert_allclose(np.sum(parts, axis=0), whole)
        assert whole == [7, 13, X.sum()]


def test_a_cache_is_filled_once_however_many_threads_ask():
    drawn = tf.Variable(0)

    def count(x, y):
        drawn.assign_add(1)
        return x, y

    batches = CachedBatches(dataset().map(count), steps=None)
    threads = [threading.Thread(target=batches.fill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert batches.num_batches == 3
    assert sums(batches, 1, 3)[0] == 2
    assert int(drawn) == 3


@pytest.mark.parametrize("row", [0, 4])
def test_data_that_fails_fails_whenever_it_is_asked_for(row):
    """An iterator goes on behind the batch that failed, and would leave it out."""

    def check(number):
        tf.debugging.assert_none_equal(number, tf.constant(row, tf.int64), message="bad row")
        return number

    batches = CachedBatches(tf.data.Dataset.range(8).map(check).batch(2), steps=None)
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad row"):
            batches.fill()
    assert batches.num_batches is None


def test_batches_of_any_kind_are_kept_as_they_are():
    rows = (
        {"ragged": tf.ragged.constant([[1, 2], [3], [4, 5, 6]]), "sparse": tf.sparse.eye(3), "none": None},
        tf.constant(["a", "b", "c"]),
    )
    made = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    batches = CachedBatches(made, steps=None)
    assert batches.fill() == 2

    def join(batch):
        return [tf.strings.reduce_join(batch[1])]

    assert over(batches, join, 0, 1, tf.constant("")) == b"ab"
    assert over(batches, join, 0, 2, tf.constant("")) == b"c", "the last one's"
    assert over(batches, join, 2, 2, tf.constant("none")) == b"none"
    stream = batches.stream()
    for expected in made:
        kept = stream.draw()
        tf.nest.assert_same_structure(kept, expected, expand_composites=True)
        for a, b in zip(*(tf.nest.flatten(x, expand_composites=True) for x in (kept, expected)), strict=True):
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
            np.testing.assert_array_equal(a, b)
    assert stream.draw() is None


def test_what_goes_through_batches_is_the_same_for_other_data_of_the_same_kind_and_holds_none():
    """Compiled evaluations are kept by it: else each fit would compile its own, or read old data."""
    same = make(X, Y, batch_size=5), make(X + 1, Y, batch_size=5)
    assert same[0].fold == same[1].fold
    assert hash(same[0].fold) == hash(same[1].fold)
    assert make(X, Y, batch_size=4).fold != same[0].fold
    assert make(X[:12], Y[:12], batch_size=5).fold != same[0].fold
    kept = make(dataset()), make(dataset().map(lambda x, y: (x + 1, y)))
    assert all(isinstance(batches, CachedBatches) for batches in kept)
    assert kept[0].fold == kept[1].fold
    assert hash(kept[0].fold) == hash(kept[1].fold)
    assert make(dataset().map(lambda x, y: (x, tf.cast(y, tf.int32)))).fold != kept[0].fold
    held = [weakref.ref(batches) for batches in (*same, *kept)]
    folds = [batches.fold for batches in (*same, *kept)]
    del same, kept
    gc.collect()
    assert [batches() for batches in held] == [None] * len(folds)


def test_an_error_of_the_data_is_everybodys_who_asked_before_it():
    drawn = tf.Variable(0)

    def fails_at_first(x, y):
        with tf.control_dependencies([tf.debugging.assert_greater(drawn.assign_add(1), 1)]):
            return tf.identity(x), y

    batches = CachedBatches(dataset().map(fails_at_first), steps=None)
    raised = []
    for failures in (0, 0, 0):
        with pytest.raises(tf.errors.InvalidArgumentError) as found:
            batches.fill(failures)
        raised.append(found.value)
    assert raised[0] is raised[1] is raised[2]
    assert batches.failures == 1
    assert batches.fill(1) == batches.fill(0) == batches.fill() == 3


def test_who_asks_without_a_number_draws_again():
    batches = CachedBatches(dataset().map(lambda x, y: (tf.debugging.check_numerics(x / 0, "bad"), y)), None)
    for failures in (1, 2, 3):
        with pytest.raises(tf.errors.InvalidArgumentError):
            batches.fill()
        assert batches.failures == failures
